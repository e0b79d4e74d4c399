-- name: known_runs
-- Which of these runs exist, as a JSON array.
select json_group_array(id)
from perdure.runs
where id = any(:runs)

-- name: known_starts
-- What these keys started, as a JSON array of key, run, digest and thread.
select json_group_array(json_array(s.key, s.run, hex(s.digest), t.thread_id))
from perdure.starts s
join perdure.runs r on r.id = s.run
join perdure.threads t on t.id = r.thread
where s.key in (values (?))

-- name: known_threads
-- The threads of these names, as a JSON array.
select json_group_array(json_array(thread_id, id, agent, head, depth, last_ordinal))
from perdure.threads
where thread_id in (values (?))

-- name: put_threads
-- Insert these threads, or move the queues of those that exist.
insert into perdure.threads (id, thread_id, agent, head, depth, last_ordinal, created_at)
select *
from (values (?, ?, ?, ?, ?, ?, ?))
where column1 is not null
on conflict (id) do update set
  head = excluded.head,
  depth = excluded.depth,
  last_ordinal = excluded.last_ordinal

-- name: insert_runs
-- Insert these queued runs.
insert into perdure.runs (
  id, thread, ordinal, agent, queue, state, ready, ready_at, priority, key, tenant, tags, created_at
)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: insert_starts
-- Remember which run each of these keys started.
insert into perdure.starts (key, run, digest)
select *
from (values (?, ?, ?))
where column1 is not null
