-- name: start
-- Put runs on disk; one row for each, in order.
select answer, run, thread_id, depth, agent
from perdure.start(
  :id, :thread, :thread_id, :agent, :queue, :priority, :delay_us, :key, :digest, :payload, :if_busy, :tenant, :tags,
  :blob_start, :blob_digest, :blob_data, :depth_max
)

-- name: claim
-- Take runs; the columns are those of `records.Claimed` without its records and tries.
select
  run, thread, thread_id, agent, fence, super_step, attempt, recoveries, strikes, created_at, arguments, state
from perdure.claim(:worker, :agents, :queues, :deployment, :limit, :suspects, :ticket)

-- name: claimed_records
-- The steps of these super-steps; the columns are those of `records.Checkpoint`.
select
  c.run, c.super_step, c.key, c.kind, c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed, c.payload, c.state,
  c.started_at, c.ended_at
from unnest(:runs::bigint[], :super_steps::integer[]) as s (run, super_step)
join perdure.checkpoints c on c.run = s.run and c.super_step = s.super_step
where c.kind = 0
order by c.run, c.seq, c.key

-- name: claimed_attempts
-- The unfinished tries of these super-steps; the columns are those of `records.Attempt`.
select a.run, a.super_step, a.key, a.attempt, a.fence, a.error, a.started_at, a.ended_at
from unnest(:runs::bigint[], :super_steps::integer[]) as s (run, super_step)
join perdure.attempts a on a.run = s.run and a.super_step = s.super_step
order by a.run, a.key, a.attempt

-- name: recorded
-- Which of these checkpoints exist, and under which fence.
select c.run, c.super_step, c.key, c.fence
from unnest(:runs::bigint[], :super_steps::integer[], :keys::text[]) as s (run, super_step, key)
join perdure.checkpoints c on c.run = s.run and c.super_step = s.super_step and c.key = s.key

-- name: retry
-- Send a failed or cancelled run on.
select perdure.retry(:run, :drop_keys)

-- name: release
-- Send a held run on.
select perdure.release(:run)

-- name: watch
-- Ask for a hint at the end of these runs.
select perdure.watch(:runs)
