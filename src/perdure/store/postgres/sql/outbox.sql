-- name: hand_over
-- Put deliveries into their lanes, in the order of the function's arguments.
select bounced, why
from perdure.hand_over(
  :id, :run, :fence, :sink, :partition, :key, :payload, :position, :b_id, :b_thread, :b_digest, :b_data, :lane_max
)

-- name: claim_deliveries
-- Take deliveries; the columns are those of `deliveries.Delivery`.
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from perdure.claim_deliveries(:worker, :sinks, :limits, :keep, :suspects) o

-- name: settle_deliveries
-- Say what came of tries.
select perdure.settle_deliveries(:worker, :delivery, :attempt, :state, :delay_us, :error)

-- name: next_delivery
-- How long until the next delivery to one of these sinks is due. (3: SUSPECT_STRIKES.)
select greatest(n.due_at - perdure.now_us(), 0)
from unnest(:sinks::text[]) as s (sink)
cross join lateral (
  select d.due_at
  from perdure.deliveries d
  where d.state = 'queued'
    and d.ready
    and d.sink = s.sink
    and (:suspects::boolean or d.strikes < 3)
  order by d.due_at
  limit 1
) n
order by n.due_at
limit 1

-- name: redeliver
-- Send dead deliveries on; the columns are those of `deliveries.Delivery`.
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from perdure.redeliver(:deliveries) o

-- name: get_deliveries
-- These deliveries, by id; the columns are those of `deliveries.Delivery`.
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from perdure.outbox o
where o.id = any(:deliveries)
order by o.id

-- name: overdue_deliveries
-- Deliveries whose turn it is, and that were due before then, those that are due longest first; the columns are those
-- of `deliveries.Delivery`. (The sinks that have any are found one after the other, along what a claim walks along.)
with recursive sinks (sink) as (
  (
    select d.sink
    from perdure.deliveries d
    where d.state = 'queued' and d.ready
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
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from sinks s
cross join lateral (
  select d.id
  from perdure.deliveries d
  where d.state = 'queued' and d.ready
    and d.sink = s.sink
    and d.due_at < :before
  order by d.due_at, d.id
  limit :limit
) mine
join perdure.outbox o on o.id = mine.id
order by o.due_at, o.id
limit :limit

-- name: deliveries
-- A page of deliveries, oldest id first. (What is null is left out of the plan, which is made for each call: so the
-- index of those that are not delivered serves those who ask for these.)
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from perdure.outbox o
where o.id > :after
  and (:before::bigint is null or o.id < :before)
  and (
    :state::text is null
    or :state not in ('queued', 'delivering', 'dead')
    or o.state in ('queued', 'delivering', 'dead')
  )
  and (:state::text is null or o.state = :state)
  and (:sink::text is null or o.sink = :sink)
  and (:partition::text is null or o.partition = :partition)
  and (:tenant::text is null or o.tenant = :tenant)
  and (:bill::boolean is null or o.bill = :bill)
order by o.id
limit :limit

-- name: deliveries_of
-- The same for one run, one thread or one key, along their own indexes.
select
  o.id, o.run, o.thread, o.thread_id, o.agent, o.tenant, o.sink, o.partition, o.seq, o.key, o.bill, o.fence, o.payload,
  o.state, o.ready, o.attempts, o.strikes, o.due_at, o.created_at, o.settled_at, o.error, o.worker
from (
  select d.id
  from perdure.deliveries d
  where :run::bigint is not null
    and d.run = :run
  union all
  select d.id
  from perdure.threads h
  join perdure.runs r on r.thread = h.id
  join perdure.deliveries d on d.run = r.id
  where :run::bigint is null
    and h.thread_id = :thread_id
  union all
  select d.id
  from perdure.deliveries d
  where :run::bigint is null
    and :thread_id::text is null
    and d.key = :key
) mine
join perdure.outbox o on o.id = mine.id
where o.id > :after
  and (:before::bigint is null or o.id < :before)
  and (:thread_id::text is null or o.thread_id = :thread_id)
  and (:key::text is null or o.key = :key)
  and (:state::text is null or o.state = :state)
  and (:sink::text is null or o.sink = :sink)
  and (:partition::text is null or o.partition = :partition)
  and (:tenant::text is null or o.tenant = :tenant)
  and (:bill::boolean is null or o.bill = :bill)
order by o.id
limit :limit
