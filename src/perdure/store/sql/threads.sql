-- name: get_thread
-- The thread of that name; the columns are those of `records.Thread`, in its order.
select id, thread_id, agent, head, depth, last_ordinal, snapshot_run, snapshot_step, created_at
from perdure.threads
where thread_id = :thread_id

-- name: list_threads
-- A page of threads, newest id first.
select id, thread_id, agent, head, depth, last_ordinal, snapshot_run, snapshot_step, created_at
from perdure.threads
where id < cast(:before as bigint)
  and agent = coalesce(cast(:agent as text), agent)
order by id desc
limit :limit
