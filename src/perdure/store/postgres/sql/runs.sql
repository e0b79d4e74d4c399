-- name: start
-- Put runs on disk; one row for each, in order.
select answer, run, thread_id, depth, agent
from perdure.start_runs(
  :id, :thread, :thread_id, :agent, :queue, :priority, :delay_us, :key, :digest, :payload, :if_busy, :tenant, :tags,
  :deadline_us, :deadline_at, :parent, :parent_fence, :parent_worker, :parent_cancelled, :detached, :displaced,
  :blob_start, :blob_digest, :blob_data, :depth_max, :new_thread
)

-- name: start_on_terms
-- The same where some have budgets of their own, or are billed.
select answer, run, thread_id, depth, agent
from perdure.start_runs(
  :id, :thread, :thread_id, :agent, :queue, :priority, :delay_us, :key, :digest, :payload, :if_busy, :tenant, :tags,
  :deadline_us, :deadline_at, :parent, :parent_fence, :parent_worker, :parent_cancelled, :detached, :displaced,
  :blob_start, :blob_digest, :blob_data, :depth_max, :new_thread,
  :budget, :limit_usd, :limit_tokens, :limit_steps, :limit_us, :bill_sink, :bill_key
)

-- name: fork
-- Let a run that has just been started go on from a checkpoint, in the order of the function's arguments.
select perdure.fork(
  :run, :super_step, :state,
  :c_super_step, :c_key, :c_kind, :c_seq, :c_fence, :c_worker, :c_attempt, :c_digest, :c_failed, :c_payload, :c_state,
  :c_started_at, :c_ended_at
)

-- name: claim
-- Take runs; the columns are those of `records.Claimed` without its records, tries, waits and effects, and which of
-- these there are. (Its budgets come as they are found.)
select
  run, thread, thread_id, agent, fence, super_step, attempt, recoveries, strikes, created_at, arguments, state, now,
  tenant, priority, deadline_at, cancel, undo_outcome, undo_payload, recorded, tried, waits, effects,
  budgets
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

-- name: claimed_waits
-- What these runs wait for in these super-steps; the columns are those of `records.Wait`.
select w.run, w.super_step, w.key, w.kind, w.opened_at, w.due_at, w.target, w.labels, w.ready, w.due
from perdure.waits_of(:runs::bigint[], :mailbox_max::bigint) w
join unnest(:runs::bigint[], :super_steps::integer[]) as s (run, super_step)
  on s.run = w.run and s.super_step = w.super_step
order by w.run, w.key

-- name: waits
-- What these runs wait for, all of it or only what is ready; the columns are those of `records.Wait`.
select run, super_step, key, kind, opened_at, due_at, target, labels, ready, due
from perdure.waits_of(:runs, :mailbox_max)
where ready or not :only_ready::boolean

-- name: cancellations
-- The runs in a worker's hands whose cancellation was requested.
select id, cancel from perdure.runs where worker = :worker and cancel is not null order by id

-- name: next_due
-- How long until the time of the next parked run comes. (The number: NEVER_US.)
select r.ready_at - n.now_us
from (select perdure.now_us() as now_us) n
cross join lateral (
  select o.ready_at
  from perdure.runs o
  where o.state = 'waiting'
    and o.ready_at < 4611686018427387904
    and o.ready_at > n.now_us
  order by o.ready_at
  limit 1
) r

-- name: recorded
-- Which of these checkpoints exist, and under which fence.
select c.run, c.super_step, c.key, c.fence
from unnest(:runs::bigint[], :super_steps::integer[], :keys::text[]) as s (run, super_step, key)
join perdure.checkpoints c on c.run = s.run and c.super_step = s.super_step and c.key = s.key

-- name: retry
-- Send a failed or cancelled run on.
select perdure.retry(:run, :drop_keys, :undo)

-- name: release
-- Send a held run on.
select perdure.release(:run)

-- name: cancel
-- Request a run's cancellation.
select perdure.cancel(:run, :reason, :payload)

-- name: watch
-- Ask for a hint at the end of these runs.
select perdure.watch(:runs)
