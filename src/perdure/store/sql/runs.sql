-- name: get_runs
-- These runs, by id; the columns are those of `records.Run`, in its order.
select
  r.id, r.thread, t.thread_id, r.ordinal, r.agent, r.queue, r.deployment, r.state, r.reason, r.detail,
  r.ready, r.ready_at, r.priority, r.worker, r.fence, r.attempt, r.recoveries, r.strikes, r.super_step,
  r.key, r.tenant, r.tags, r.created_at, r.started_at, r.ended_at
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.id = any(:runs)
order by r.id

-- name: outcomes
-- The payloads of the `ENDED` checkpoints (kind 2) of those of these runs that are terminal: the last of each log.
select c.run, c.failed, c.payload
from perdure.runs r
join perdure.checkpoints c
  on c.run = r.id
 and c.super_step = (select max(m.super_step) from perdure.checkpoints m where m.run = r.id)
 and c.key = ''
where r.id = any(:runs)
  and r.state in ('completed', 'failed', 'cancelled')
  and c.kind = 2
order by c.run
