-- name: next_priority
-- The highest priority below this one that a run has which is not in anybody's hands.
select priority
from perdure.runs
where state in ('queued', 'waiting') and ready
  and priority < :below
order by priority desc
limit 1

-- name: claimable
-- A page of the runs of one priority that this worker may claim, from after a pair of `ready_at` and id, as JSON.
select json_group_array(json_array(
  page.id, page.thread, t.thread_id, page.agent, page.fence, page.super_step, page.attempt, page.recoveries,
  page.strikes, page.created_at, page.ready_at, page.tenant, page.priority, page.deadline_at, page.cancel,
  page.attempt > 0 or page.base_step is not null, page.undo_outcome is not null, json(page.budgets)
))
from (
  select *
  from perdure.runs
  where state in ('queued', 'waiting') and ready
    and priority = :priority
    and (ready_at, id) > (:after_ready_at, :after_id)
    and ready_at <= :now
    and agent = any(:agents)
    and queue = any(:queues)
    and (deployment is null or deployment = :deployment)
  order by ready_at, id
  limit :limit
) page
join perdure.threads t on t.id = page.thread

-- name: claim_runs
-- Put these runs into the worker's hands.
update perdure.runs
set
  state = 'running',
  worker = :worker,
  fence = fence + 1,
  attempt = attempt + 1,
  deployment = :deployment,
  started_at = coalesce(started_at, :now)
where id = any(:runs)

-- name: claimed_boundaries
-- Arguments and state of these runs' super-steps, as JSON; before the first super-step the state is the thread's.
select json_group_array(json_array(run, hex(arguments), case when state is not null then hex(state) end))
from (
  select r.id as run, c.payload as arguments, case when r.super_step = 1 then s.state else c.state end as state
  from perdure.runs r
  join perdure.threads t on t.id = r.thread
  join perdure.checkpoints c on c.run = r.id and c.super_step = r.super_step and c.key = ''
  left join perdure.checkpoints s on s.run = t.snapshot_run and s.super_step = t.snapshot_step and s.key = ''
  where r.id = any(:runs)
)

-- name: claimed_sizes
-- How many bytes of records each of these runs' current super-steps has, as JSON.
select json_group_array(json_array(run, size))
from (
  select c.run, sum(length(c.payload)) as size
  from perdure.runs r
  join perdure.checkpoints c on c.run = r.id and c.super_step = r.super_step
  where r.id = any(:runs)
    and c.kind = 0
  group by c.run
)

-- name: claimed_records
-- The recorded steps of these runs' current super-steps.
select
  c.run, c.super_step, c.key, c.kind, c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed, c.payload, c.state,
  c.started_at, c.ended_at
from perdure.runs r
join perdure.checkpoints c on c.run = r.id and c.super_step = r.super_step
where r.id = any(:runs)
  and c.kind = 0

-- name: claimed_page
-- A page of the same for one run, from after a key.
select
  c.run, c.super_step, c.key, c.kind, c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed, c.payload, c.state,
  c.started_at, c.ended_at
from perdure.runs r
join perdure.checkpoints c on c.run = r.id and c.super_step = r.super_step
where r.id = :run
  and c.kind = 0
  and c.key > :after
order by c.key
limit :limit

-- name: claimed_attempts
-- The unfinished tries of these runs' current super-steps.
select a.run, a.super_step, a.key, a.attempt, a.fence, a.error, a.started_at, a.ended_at
from perdure.runs r
join perdure.attempts a on a.run = r.id and a.super_step = r.super_step
where r.id = any(:runs)
order by a.run, a.key, a.attempt

-- name: may_claim
-- Whether this worker may take runs, and its claim does not come too late; and whether there are budgets of agents or
-- of tenants.
select
  exists (select 1 from perdure.workers where id = :worker and state = 'alive' and ticket <= :ticket),
  exists (
    select 1
    from perdure.budgets
    where name >= 'agent:' and name < 'agent;'
       or name >= 'tenant:' and name < 'tenant;'
  )

-- name: is_alive
-- Whether this worker may write.
select exists (select 1 from perdure.workers where id = :worker and state = 'alive')
