-- name: guard
-- Whether the worker is alive; and the pairs of run and fence that it does not hold, or whose run is to be cancelled,
-- each with whether it is held and whether it is to be cancelled, as a JSON array.
select
  exists (select 1 from perdure.workers where id = :worker and state = 'alive'),
  (
    select json_group_array(json_array(
      p.run, p.fence, ifnull(r.state = 'running' and r.worker = :worker and r.fence = p.fence, 0), r.cancel is not null
    ))
    from (
      select json_extract(value, '$[0]') as run, json_extract(value, '$[1]') as fence
      from json_each(:pairs)
    ) p
    left join perdure.runs r on r.id = p.run
    where r.id is null
       or r.state <> 'running'
       or r.worker is not :worker
       or r.fence <> p.fence
       or r.cancel is not null
  )

-- name: slice_ended
-- Whether the slice under this fence has ended, and nobody has claimed the run since.
select exists (select 1 from perdure.runs where id = :run and fence = :fence and state <> 'running')

-- name: own_checkpoint
-- Whether this checkpoint is there under this fence.
select exists (
  select 1
  from perdure.checkpoints
  where run = :run and super_step = :super_step and key = :key and fence = :fence
)

-- name: append_checkpoints
-- Append these rows to their runs' logs, except those that are there already.
insert into perdure.checkpoints (
  run, super_step, key, kind, seq, fence, worker, attempt, digest, failed, payload, state, started_at, ended_at
)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null
on conflict (run, super_step, key) do nothing

-- name: recorded
-- Those of these addresses that have a checkpoint, with its fence, as a JSON array.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
select json_group_array(json_array(c.run, c.super_step, c.key, c.fence))
from mine m
join perdure.checkpoints c on c.run = m.run and c.super_step = m.super_step and c.key = m.key

-- name: record_attempts
-- File these tries; a later one with the same number replaces the earlier, unless that has ended and it has not.
insert into perdure.attempts (run, super_step, key, attempt, fence, error, started_at, ended_at)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null
on conflict (run, super_step, key, attempt) do update set
  fence = excluded.fence,
  error = excluded.error,
  started_at = excluded.started_at,
  ended_at = excluded.ended_at
where excluded.error is not null or attempts.error is null

-- name: put_blobs
-- Store these blobs of a thread, except those that are there already.
insert into perdure.blobs (thread, digest, data)
select *
from (values (?, ?, ?))
where column1 is not null
on conflict (thread, digest) do nothing

-- name: begin_super_steps
-- Set these runs' super-step; a repeated batch never sets one back. A run whose thread's newest state is not its own
-- notes where that is.
update perdure.runs
set
  super_step = b.super_step,
  base_run = case when t.snapshot_run is not runs.id then t.snapshot_run else base_run end,
  base_step = case when t.snapshot_run is not runs.id then ifnull(t.snapshot_step, 0) else base_step end
from (
  select
    json_extract(value, '$[0]') as run, json_extract(value, '$[1]') as super_step, json_extract(value, '$[2]') as thread
  from json_each(:steps)
) b
join perdure.threads t on t.id = b.thread
where runs.id = b.run
  and runs.super_step < b.super_step

-- name: move_snapshots
-- Point these threads to their newest state; a repeated batch never moves a pointer back.
update perdure.threads
set snapshot_run = s.run, snapshot_step = s.super_step
from (
  select
    json_extract(value, '$[0]') as thread, json_extract(value, '$[1]') as run, json_extract(value, '$[2]') as super_step
  from json_each(:snapshots)
) s
where threads.id = s.thread
  and (threads.snapshot_run is not s.run or threads.snapshot_step < s.super_step)

-- name: end_runs
-- Make these runs terminal; a cancelled one says why.
update perdure.runs
set
  state = e.state,
  reason = case when e.state = 'cancelled' then runs.cancel end,
  worker = null,
  ready = 0,
  ended_at = :now
from (
  select json_extract(value, '$[0]') as run, json_extract(value, '$[1]') as state
  from json_each(:ends)
) e
where runs.id = e.run

-- name: roll_back
-- Point the threads of these cancelled runs back to the state from before them, where that is what is to be done.
update perdure.threads
set
  snapshot_run = r.base_run,
  snapshot_step = case when r.base_run is not null then r.base_step end
from perdure.runs r
where r.id = any(:runs)
  and r.rollback
  and r.base_step is not null
  and threads.id = r.thread
  and threads.snapshot_run = r.id

-- name: advance_threads
-- Hand these threads, whose head has ended, to their next unfinished run.
update perdure.threads
set
  depth = depth - 1,
  head = (
    select r.id
    from perdure.runs r
    where r.thread = threads.id and r.ended_at is null
    order by r.ordinal
    limit 1
  )
where id = any(:threads)

-- name: promote_heads
-- Make the heads of these threads ready.
update perdure.runs
set ready = 1
where id in (select head from perdure.threads where id = any(:threads))
  and not ready

-- name: requeue_runs
-- Give these runs back, each ready after its delay or from its deadline on; one without a delay, or whose cancellation
-- was requested, keeps its place in the queue.
update perdure.runs
set
  state = 'queued',
  worker = null,
  ready_at = case
    when q.delay_us <= 0 or cancel is not null then ready_at
    else min(:now + q.delay_us, ifnull(deadline_at, :now + q.delay_us))
  end
from (
  select json_extract(value, '$[0]') as run, json_extract(value, '$[1]') as delay_us
  from json_each(:requeues)
) q
where runs.id = q.run

-- name: forget_attempts
-- Delete the tries of a failed step of the run's current super-step.
delete from perdure.attempts
where run = :run
  and super_step = (select super_step from perdure.runs where id = :run)
  and key = :key
  and exists (
    select 1
    from perdure.checkpoints c
    where c.run = attempts.run and c.super_step = attempts.super_step and c.key = attempts.key and c.failed
  )

-- name: forget_failure
-- Delete the record of a failed step of the run's current super-step.
delete from perdure.checkpoints
where run = :run
  and super_step = (select super_step from perdure.runs where id = :run)
  and key = :key
  and kind = 0
  and failed

-- name: hold_run
-- Keep a run for a person.
update perdure.runs
set state = 'held', reason = :reason, detail = :detail, worker = null
where id = :run

-- name: followers
-- Whether one of these runs is watched; whether one of them has ended and is billed, or has something reserved; and the
-- runs that wait for one of them, as a JSON array.
select
  exists (select 1 from perdure.runs where id = any(:runs) and watched),
  exists (select 1 from perdure.runs where id = any(:runs) and bill_sink is not null and ended_at is not null),
  exists (select 1 from perdure.reservations where run = any(:runs)),
  (
    select json_group_array(run)
    from (
      select distinct run
      from perdure.waits
      where kind = 3
        and target = any(:runs)
    )
  )
