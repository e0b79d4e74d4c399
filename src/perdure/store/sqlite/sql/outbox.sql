-- name: known_deliveries
-- Which of these pairs of key and sink there are, as a JSON array.
with mine (key, sink) as (
  values (?, ?)
)
select json_group_array(json_array(d.sink, d.key))
from mine m
join perdure.deliveries d on d.key = m.key and d.sink = m.sink

-- name: lanes_at
-- These lanes, as a JSON array of sink, partition, the last number and how many are open.
with mine (sink, partition) as (
  values (?, ?)
)
select json_group_array(json_array(l.sink, l.partition, l.last_seq, l.depth))
from mine m
join perdure.lanes l on l.sink = m.sink and l.partition = m.partition

-- name: put_lanes
-- Set the last numbers of these lanes, and how many deliveries are open in them.
insert into perdure.lanes (sink, partition, last_seq, depth)
select *
from (values (?, ?, ?, ?))
where column1 is not null
on conflict (sink, partition) do update set
  last_seq = excluded.last_seq,
  depth = excluded.depth

-- name: insert_deliveries
-- Put these deliveries into the outbox.
insert into perdure.deliveries (
  id, run, fence, sink, partition, seq, key, bill, ready, payload, due_at, created_at, state
)
select *, 'queued'
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: bills_due
-- The runs among these that have ended and are billed, as a JSON array: id, fence, state, thread, where their bills go,
-- and how many there have been.
select json_group_array(json_array(
  r.id, r.fence, r.state, t.thread_id, r.bill_sink, r.bill_key,
  (select count(*) from perdure.deliveries d where d.run = r.id and d.bill = 1)
))
from perdure.runs r
join perdure.threads t on t.id = r.thread
where r.id = any(:runs)
  and r.state in ('completed', 'failed', 'cancelled')
  and r.bill_sink is not null

-- name: return_deliveries
-- Queue again what this worker has in its hands, except what it keeps; `struck` is 1 if it died with it.
update perdure.deliveries
set state = 'queued', worker = null, due_at = :now, strikes = strikes + :struck
where worker = :worker
  and id not in (select value from json_each(:keep))

-- name: claimable_deliveries
-- The deliveries to a sink that a relay may take, those that are due longest first, as a JSON array; not the suspects
-- (3: SUSPECT_STRIKES).
select json_group_array(id)
from (
  select id
  from perdure.deliveries
  where state = 'queued' and ready
    and sink = :sink
    and strikes < 3
    and due_at <= :now
  order by due_at, id
  limit :limit
)

-- name: suspect_deliveries
-- The suspects among the deliveries to these sinks that a relay may take, of each sink as many as it has places, those
-- that are due longest first, as a JSON array of id and sink. (They are few: the plus keeps the plan to their own
-- index.)
select json_group_array(json_array(id, sink))
from (
  select few.id, few.sink
  from (
    select id, sink, due_at, row_number() over (partition by +sink order by due_at, id) as number
    from perdure.deliveries
    where state = 'queued' and ready
      and strikes >= 3
      and due_at <= :now
  ) few
  join json_each(:sinks) s on s.key = few.sink and few.number <= s.value
  order by few.due_at, few.id
  limit :limit
)

-- name: take_deliveries
-- Put these deliveries into the worker's hands.
update perdure.deliveries
set state = 'delivering', worker = :worker, attempts = attempts + 1
where id = any(:ids)

-- name: deliveries_held
-- Those of these deliveries that this worker has in its hands, as a JSON array of id, attempt and lane.
select json_group_array(json_array(id, attempts, sink, partition))
from perdure.deliveries
where id = any(:ids)
  and worker = :worker

-- name: settle_deliveries
-- Set what came of these tries; one that is over is not the head of its lane any more.
with told (id, state, due_at, settled_at, error) as (
  values (?, ?, ?, ?, ?)
)
update perdure.deliveries
set
  state = o.state,
  ready = o.state = 'queued',
  due_at = ifnull(o.due_at, deliveries.due_at),
  settled_at = o.settled_at,
  error = o.error,
  strikes = 0,
  worker = null
from told o
where deliveries.id = o.id

-- name: promote_deliveries
-- Make the heads of these lanes ready.
with mine (sink, partition) as (
  values (?, ?)
)
update perdure.deliveries
set ready = 1
where id in (
    select (
      select d.id
      from perdure.deliveries d
      where d.state in ('queued', 'delivering')
        and d.sink = m.sink
        and d.partition = m.partition
      order by d.seq
      limit 1
    )
    from mine m
    where m.sink is not null
  )
  and not ready

-- name: next_delivery
-- When the next delivery to one of these sinks is due. (3: SUSPECT_STRIKES.)
select min((
  select d.due_at
  from perdure.deliveries d
  where d.state = 'queued' and d.ready
    and d.sink = s.value
    and (:suspects or d.strikes < 3)
  order by d.due_at
  limit 1
))
from json_each(:sinks) s

-- name: dead_deliveries
-- Which of these deliveries are dead, as a JSON array of id and lane.
select json_group_array(json_array(id, sink, partition))
from perdure.deliveries
where id = any(:ids)
  and state = 'dead'

-- name: revive_deliveries
-- Queue these again, at the places that they have now.
with mine (id, seq, ready, due_at) as (
  values (?, ?, ?, ?)
)
update perdure.deliveries
set state = 'queued', attempts = 0, strikes = 0, seq = m.seq, ready = m.ready, due_at = m.due_at
from mine m
where deliveries.id = m.id

-- name: get_deliveries
-- These deliveries, by id.
select *
from perdure.outbox
where id = any(:ids)
order by id

-- name: overdue_deliveries
-- Deliveries whose turn it is, and that were due before then, those that are due longest first. (The sinks that have
-- any are found one after the other, along what a claim walks along.)
with recursive sinks (sink) as (
  select (
    select d.sink
    from perdure.deliveries d
    where d.state = 'queued' and d.ready
      and d.sink > ''
    order by d.sink
    limit 1
  )
  union all
  select (
    select d.sink
    from perdure.deliveries d
    where d.state = 'queued' and d.ready
      and d.sink > s.sink
    order by d.sink
    limit 1
  )
  from sinks s
  where s.sink is not null
)
select o.*
from sinks s
join perdure.outbox o on o.sink = s.sink
where o.state = 'queued' and o.ready
  and o.due_at < :before
order by o.due_at, o.id
limit :limit

-- name: list_deliveries
-- A page of deliveries in any state, oldest first.
select *
from perdure.outbox
where id > :after
  and id < :before
  and (:state is null or state = :state)
  and (:sink is null or sink = :sink)
  and (:partition is null or partition = :partition)
  and (:bill is null or bill = :bill)
  and (:tenant is null or tenant = :tenant)
order by id
limit :limit

-- name: list_undelivered
-- The same of those that are not delivered, along their own index.
select *
from perdure.outbox
where state in ('queued', 'delivering', 'dead')
  and id > :after
  and id < :before
  and (:state is null or state = :state)
  and (:sink is null or sink = :sink)
  and (:partition is null or partition = :partition)
  and (:bill is null or bill = :bill)
  and (:tenant is null or tenant = :tenant)
order by id
limit :limit

-- name: list_keyed_deliveries
-- The same of one key, along its index.
select *
from perdure.outbox
where key = :key
  and id > :after
  and id < :before
  and (:state is null or state = :state)
  and (:sink is null or sink = :sink)
  and (:partition is null or partition = :partition)
  and (:bill is null or bill = :bill)
  and (:tenant is null or tenant = :tenant)
  and (:run is null or run = :run)
  and (:thread_id is null or thread_id = :thread_id)
order by id
limit :limit

-- name: list_run_deliveries
-- The same of one run or one thread, along their indexes.
select o.*
from (
  select cast(:run as integer) as run
  where :run is not null
  union all
  select r.id
  from perdure.threads h
  join perdure.runs r on r.thread = h.id
  where :run is null and h.thread_id = :thread_id
) mine
join perdure.outbox o on o.run = mine.run
where o.id > :after
  and o.id < :before
  and (:thread_id is null or o.thread_id = :thread_id)
  and (:state is null or o.state = :state)
  and (:sink is null or o.sink = :sink)
  and (:partition is null or o.partition = :partition)
  and (:bill is null or o.bill = :bill)
  and (:tenant is null or o.tenant = :tenant)
order by o.id
limit :limit
