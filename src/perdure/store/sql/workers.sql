-- name: workers
-- Workers, oldest first, with the number of runs each holds; the columns are those of `records.Worker`.
select
  w.id, w.name, w.host, w.pid, w.deployment, w.state, w.idle, w.session, w.started_at, w.lease_until, w.ended_at,
  (select count(*) from perdure.runs r where r.worker = w.id) as running
from perdure.workers w
where w.state = 'alive' or not cast(:alive as boolean)
order by w.started_at, w.id
