-- name: get_runs
-- These runs, by id; the columns are those of `records.Run`.
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
where r.id < :before::bigint
  and (:state::text is null or r.state = :state)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
  and (:parent::bigint is null or r.parent = :parent)
  and r.tags @> :tags::text[]
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
  and r.id < :before::bigint
  and (:state::text is null or r.state = :state)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
  and (:parent::bigint is null or r.parent = :parent)
  and r.tags @> :tags::text[]
order by r.id desc
limit :limit

-- name: blobs
-- These blobs of a thread.
select digest, data
from perdure.blobs
where thread = :thread
  and digest = any(:digests)

-- name: thread_checkpoints
-- The shared statement, run by run: a join of its two tables would look for the empty keys of all runs.
select
  c.run, c.super_step, c.key, c.kind, c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed, c.payload,
  c.state, c.started_at, c.ended_at
from perdure.runs r
cross join lateral (
  select *
  from perdure.checkpoints o
  where o.run = r.id
    and o.key = ''
    and (r.ordinal, o.super_step) < (
      coalesce(
        (select b.ordinal from perdure.runs b where b.id = :before_run),
        case when cast(:before_run as bigint) is null then 9223372036854775807 else 0 end
      ),
      cast(:before_step as bigint)
    )
  order by o.super_step desc
  limit :limit
) as c
where r.thread = :thread
order by r.ordinal desc, c.super_step desc
limit :limit
