-- name: list_runs
-- A page of runs, newest id first; tags must all be there.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.id < :before::bigint
  and (:state::text is null or r.state = :state)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
  and r.tags @> :tags::text[]
order by r.id desc
limit :limit

-- name: list_thread_runs
-- The same for one thread, along its own index.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at
from perdure.threads t
join perdure.runs r on r.thread = t.id
where t.thread_id = :thread_id
  and r.id < :before::bigint
  and (:state::text is null or r.state = :state)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
  and r.tags @> :tags::text[]
order by r.id desc
limit :limit

-- name: blobs
-- These blobs of a thread.
select digest, data
from perdure.blobs
where thread = :thread
  and digest = any(:digests)
