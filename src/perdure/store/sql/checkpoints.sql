-- name: checkpoints
-- A page of a run's log from after a pair of super-step and seq; the columns are those of `records.Checkpoint`.
select
  run, super_step, key, kind, seq, fence, worker, attempt, digest, failed, payload, state, started_at, ended_at
from perdure.checkpoints
where run = :run
  and super_step between :step_min and :step_max
  and kind >= :kind_min
  and (super_step, seq) > (cast(:after_step as bigint), cast(:after_seq as bigint))
order by super_step, seq, key
limit :limit

-- name: thread_checkpoints
-- A page of a thread's boundaries and ends, newest first, from before the given run's super-step.
select
  c.run, c.super_step, c.key, c.kind, c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed, c.payload,
  c.state, c.started_at, c.ended_at
from perdure.runs r
join perdure.checkpoints c on c.run = r.id and c.key = ''
where r.thread = :thread
  and (r.ordinal, c.super_step) < (
    coalesce(
      (select b.ordinal from perdure.runs b where b.id = :before_run),
      case when cast(:before_run as bigint) is null then 9223372036854775807 else 0 end
    ),
    cast(:before_step as bigint)
  )
order by r.ordinal desc, c.super_step desc
limit :limit

-- name: attempts
-- The run's unfinished tries; the columns are those of `records.Attempt`.
select run, super_step, key, attempt, fence, error, started_at, ended_at
from perdure.attempts
where run = :run
order by super_step, key, attempt
