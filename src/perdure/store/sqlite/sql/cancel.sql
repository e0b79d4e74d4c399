-- name: family
-- These runs, unless they are terminal or, not held, to be cancelled already, and all that are below them: unfinished,
-- not detached, nor below one that is. As a JSON array of run, thread, super-step, fence, whether it ends at once, and
-- its state, by id. What is held does not end at once if there is something to undo.
with recursive tree (id) as (
  select id
  from perdure.runs
  where id = any(:runs)
    and ended_at is null
    and (cancel is null or state = 'held')
  union
  select r.id
  from tree
  join perdure.runs r on r.parent = tree.id
  where not r.detached
)
select json_group_array(json_array(id, thread, super_step, fence, at_once, state))
from (
  select
    r.id, r.thread, r.super_step, r.fence,
    r.attempt = 0 or r.state = 'held' and not exists (
      select 1
      from perdure.effects e
      where e.run = r.id and e.state in ('done', 'undoing') and e.undoable
    ) as at_once,
    r.state
  from tree
  join perdure.runs r on r.id = tree.id
  where r.ended_at is null
    and (r.cancel is null or r.state = 'held')
  order by r.id
)

-- name: mark_rollback
-- Say that the cancellation of these unfinished runs takes back what they have saved.
update perdure.runs
set rollback = 1
where id = any(:runs)
  and ended_at is null

-- name: request_cancel
-- Request the cancellation of these runs; those that wait need not wait any more. Those that are held are sent on, to
-- undo what they have done.
update perdure.runs
set
  cancel = :reason,
  state = case when state in ('waiting', 'held') then 'queued' else state end,
  ready_at = case
    when state in ('waiting', 'held') then :now
    when state = 'queued' then min(ready_at, :now)
    else ready_at
  end,
  strikes = case when state = 'held' then 0 else strikes end,
  reason = case when state = 'held' then null else reason end,
  detail = case when state = 'held' then null else detail end,
  undo_outcome = case when state = 'held' then ifnull(undo_outcome, 'cancelled') else undo_outcome end,
  undo_payload = case when state = 'held' then ifnull(undo_payload, :payload) else undo_payload end
where id = any(:runs)

-- name: cancel_at_once
-- End these runs as cancelled.
update perdure.runs
set
  state = 'cancelled', cancel = :reason, reason = :reason, detail = null, worker = null, ready = 0, ended_at = :now
where id = any(:runs)

-- name: leave_threads
-- Take as many runs as are said out of these threads' queues; where the head is among them, the next has its turn.
update perdure.threads
set
  depth = depth - l.gone,
  head = case
    when exists (select 1 from perdure.runs h where h.id = threads.head and h.ended_at is null) then head
    else (
      select r.id
      from perdure.runs r
      where r.thread = threads.id and r.ended_at is null
      order by r.ordinal
      limit 1
    )
  end
from (
  select json_extract(value, '$[0]') as thread, json_extract(value, '$[1]') as gone
  from json_each(:gone)
) l
where threads.id = l.thread

-- name: cancellations
-- The runs in this worker's hands whose cancellation was requested, and why.
select id, cancel
from perdure.runs
where worker = :worker
  and cancel is not null
