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
  id, thread, ordinal, agent, queue, ready, ready_at, priority, key, tenant, tags, created_at, parent, detached,
  deadline_at, budgets, bill_sink, bill_key, state
)
select *, 'queued'
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: parents
-- These runs as parents, as a JSON array: whose they are if that worker is alive, whether they are to be cancelled, and
-- which budgets they were given; and whose they are otherwise.
select json_group_array(json_array(r.id, r.fence, w.id, r.cancel is not null, json(r.budgets), r.agent, r.tenant))
from perdure.runs r
join perdure.workers w on w.id = r.worker
where r.id = any(:runs)
  and r.state = 'running'
  and w.state = 'alive'

-- name: unfinished_runs
-- A thread's unfinished runs in their order, as a JSON array.
select json_group_array(id)
from (
  select id
  from perdure.runs
  where thread = :thread and ended_at is null
  order by ordinal
)

-- name: open_questions
-- The oldest open interrupt of each of these runs that has one, as a JSON array.
select json_group_array(json_array(run, oldest))
from (
  select run, min(id) as oldest
  from perdure.interrupts
  where run = any(:runs)
    and state = 'open'
    and (expires_at is null or expires_at > :now)
  group by run
)

-- name: begin_at
-- Let a new run go on from this super-step; from its start on it has a state to go back to, or the lack of one.
update perdure.runs
set super_step = :super_step, base_run = :base_run, base_step = :base_step
where id = :run

-- name: point_thread
-- Let a thread's newest state be the one at this checkpoint.
update perdure.threads
set snapshot_run = :run, snapshot_step = :super_step
where id = :thread

-- name: insert_starts
-- Remember which run each of these keys started.
insert into perdure.starts (key, run, digest)
select *
from (values (?, ?, ?))
where column1 is not null
