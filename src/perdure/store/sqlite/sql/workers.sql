-- name: reserve_ids
-- Move the counter on by `count`.
update perdure.ids
set next = next + :count

-- name: next_id
-- The counter.
select next
from perdure.ids

-- name: register
-- Insert a worker's row; a repeat changes nothing.
insert into perdure.workers (id, name, host, pid, deployment, state, started_at, lease_until)
values (:id, :name, :host, :pid, :deployment, 'alive', :now, :now + :lease_us)
on conflict (id) do nothing

-- name: renew
-- Extend a living worker's lease.
update perdure.workers
set lease_until = :now + :lease_us
where id = :worker and state = 'alive'

-- name: set_session
-- Note that this worker's death can be seen without its lease.
update perdure.workers
set session = 1 -- its lock file tells
where id = :worker and state = 'alive'

-- name: set_ticket
-- Note the number of a living worker's give-back, unless a later one has come before it.
update perdure.workers
set ticket = :ticket
where id = :worker and state = 'alive' and ticket <= :ticket

-- name: set_idle
-- Note whether this worker waits for work.
update perdure.workers
set idle = :idle
where id = :worker and state = 'alive'

-- name: anybody_idle
-- Whether a living worker waits for work.
select exists (select 1 from perdure.workers where state = 'alive' and idle)

-- name: attended
-- Living workers whose death can be seen, as a JSON array.
select json_group_array(id)
from perdure.workers
where state = 'alive' and workers.session

-- name: living
-- Living workers, as a JSON array.
select json_group_array(id)
from perdure.workers
where state = 'alive'

-- name: overdue
-- Living workers whose lease has run out or that are suspected, as a JSON array.
select json_group_array(id)
from (
  select id
  from perdure.workers
  where state = 'alive'
    and (lease_until <= :now or id = any(:suspects))
  order by id
)

-- name: end_worker
-- Say that this worker never writes again.
update perdure.workers
set state = :state, ended_at = :now, idle = 0
where id = :worker and state = 'alive'

-- name: held_by
-- The runs in this worker's hands, as a JSON array.
select json_group_array(id)
from (
  select id
  from perdure.runs
  where worker = :worker
  order by id
)

-- name: recover_runs
-- Take a dead worker's runs from it, to the places they had; a strike is forgotten where its last claim recorded
-- something, or came to the end of an undo.
update perdure.runs
set
  state = 'queued',
  worker = null,
  fence = fence + 1,
  recoveries = recoveries + 1,
  strikes = case
    when exists (
      select 1
      from perdure.checkpoints c
      where c.run = runs.id and c.super_step = runs.super_step and c.fence = runs.fence
    ) or exists (
      select 1
      from perdure.effects e
      where e.run = runs.id and e.fence = runs.fence and e.state in ('undone', 'undo_failed')
    ) then 0
    else strikes + 1
  end
where worker = :worker

-- name: poisoned
-- Which of these runs have used up their strikes, and how many those are, as a JSON array.
select json_group_array(json_array(id, strikes))
from (
  select id, strikes
  from perdure.runs
  where id = any(:runs)
    and strikes >= :recoveries_max
  order by id
)

-- name: return_runs
-- Take a worker's runs back, uncounted, except those it keeps.
update perdure.runs
set state = 'queued', worker = null, fence = fence + 1
where worker = :worker
  and id not in (select value from json_each(:keep))
