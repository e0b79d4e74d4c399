-- name: get_runs
-- These runs, by id; the columns are those of `records.Run`, in its order.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at, r.parent, r.detached, r.deadline_at, r.cancel,
  r.rollback, r.undo_outcome is not null as undoing
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.id = any(:runs)
order by r.id

-- name: list_runs
-- A page of runs, newest id first; tags must all be there.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at, r.parent, r.detached, r.deadline_at, r.cancel,
  r.rollback, r.undo_outcome is not null as undoing
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.id < :before
  and (:state is null or r.state = :state)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
  and not exists (select value from json_each(:tags) except select value from json_each(r.tags))
order by r.id desc
limit :limit

-- name: list_thread_runs
-- The same for one thread, along its own index.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at, r.parent, r.detached, r.deadline_at, r.cancel,
  r.rollback, r.undo_outcome is not null as undoing
from perdure.threads t
join perdure.runs r on r.thread = t.id
where t.thread_id = :thread_id
  and r.id < :before
  and (:state is null or r.state = :state)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
  and not exists (select value from json_each(:tags) except select value from json_each(r.tags))
order by r.id desc
limit :limit

-- name: list_children
-- The same for one run's children.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at, r.parent, r.detached, r.deadline_at, r.cancel,
  r.rollback, r.undo_outcome is not null as undoing
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.parent = :parent
  and r.id < :before
  and (:thread_id is null or t.thread_id = :thread_id)
  and (:state is null or r.state = :state)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
  and not exists (select value from json_each(:tags) except select value from json_each(r.tags))
order by r.id desc
limit :limit

-- name: blobs
-- Blobs by thread and digest.
with wanted (thread, digest) as (
  values (?, ?)
)
select b.digest, b.data
from wanted w
join perdure.blobs b on b.thread = w.thread and b.digest = w.digest
