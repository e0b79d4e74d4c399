-- The outbox. A lane's row is the lock of what waits in it: it numbers what comes, and whoever takes a head away gives
-- the next its turn under it. Lanes are locked by sink and partition, after runs (`wake.sql` has the order) and before
-- deliveries.

-- Deliveries as they are read; the columns are those of `deliveries.Delivery`.
create or replace view perdure.outbox as
select
  d.id, d.run, r.thread, t.thread_id, r.agent, r.tenant, d.sink, d.partition, d.seq, d.key, d.bill, d.fence, d.payload,
  d.state, d.ready, d.attempts, d.strikes, d.due_at, d.created_at, d.settled_at, d.error, d.worker
from perdure.deliveries d
join perdure.runs r on r.id = d.run
join perdure.threads t on t.id = r.thread;

-- Make the lanes that there are not yet, and lock all of these.
create or replace function perdure.lock_lanes(p_sink text[], p_partition text[]) returns void
language plpgsql volatile
as $$
begin
  insert into perdure.lanes (sink, partition, last_seq, depth)
  select l.sink, l.partition, 0, 0
  from unnest(p_sink, p_partition) as l (sink, partition)
  order by l.sink collate "C", l.partition collate "C"
  on conflict do nothing;
  perform from unnest(p_sink, p_partition) as o (sink, partition)
  join perdure.lanes l on l.sink = o.sink and l.partition = o.partition
  order by l.sink, l.partition
  for no key update of l;
end
$$;

-- Put deliveries at the end of their lanes, which are locked, in this order. Those whose sink has had their key are
-- there; another transaction may bring one in another lane meanwhile, so heads are looked for afterwards.
create or replace function perdure.enter_lanes(
  d_id bigint[], d_run bigint[], d_fence bigint[], d_sink text[], d_partition text[], d_key text[], d_payload bytea[],
  p_bill boolean
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
  v_id bigint[];
  v_sink text[];
  v_partition text[];
  v_seq bigint[];
  v_heads bigint[];
begin
  with entered as (
    insert into perdure.deliveries (
      id, run, fence, seq, due_at, created_at, bill, ready, state, sink, partition, key, payload
    )
    select
      o.id, o.run, o.fence, o.last_seq + o.number, v_now, v_now, p_bill, o.depth = 0 and o.number = 1, 'queued',
      o.sink, o.partition, o.key, o.payload
    from (
      select
        n.*, l.last_seq, l.depth,
        row_number() over (partition by n.sink, n.partition order by n.position) as number
      from unnest(d_id, d_run, d_fence, d_sink, d_partition, d_key, d_payload) with ordinality
        as n (id, run, fence, sink, partition, key, payload, position)
      join perdure.lanes l on l.sink = n.sink and l.partition = n.partition
      where not exists (select from perdure.deliveries k where k.key = n.key and k.sink = n.sink offset 0)
    ) as o
    order by o.key collate "C", o.sink collate "C"
    on conflict (key, sink) do nothing
    returning id, sink, partition, seq
  )
  select array_agg(e.id), array_agg(e.sink), array_agg(e.partition), array_agg(e.seq)
  into v_id, v_sink, v_partition, v_seq
  from entered e;
  if v_id is null then
    return;
  end if;
  v_heads := array(
    select (array_agg(e.id order by e.seq))[1]
    from unnest(v_id, v_sink, v_partition, v_seq) as e (id, sink, partition, seq)
    join perdure.lanes l on l.sink = e.sink and l.partition = e.partition
    where l.depth = 0
    group by e.sink, e.partition
  );
  update perdure.lanes l
  set depth = l.depth + e.count, last_seq = e.last_seq
  from (
    select o.sink, o.partition, count(*) as count, max(o.seq) as last_seq
    from unnest(v_sink, v_partition, v_seq) as o (sink, partition, seq)
    group by o.sink, o.partition
  ) as e
  where l.sink = e.sink
    and l.partition = e.partition;
  if v_heads <> '{}' then
    update perdure.deliveries d set ready = true where d.id = any (v_heads) and not d.ready;
    perform pg_notify('perdure.hints', 'deliver');
  end if;
end
$$;

-- Deliver, all but its record; the positions of those for which their lane has no room, and why (then nothing is
-- written). No sink and key come twice. One that is there brings no blobs.
create or replace function perdure.hand_over(
  d_id bigint[], d_run bigint[], d_fence bigint[], d_sink text[], d_partition text[], d_key text[], d_payload bytea[],
  d_position integer[], b_id bigint[], b_thread bigint[], b_digest bytea[], b_data bytea[], p_lane_max bigint,
  out bounced integer[], out why text[]
)
language plpgsql volatile
as $$
begin
  perform perdure.lock_lanes(d_sink, d_partition);
  select array_agg(o.position), array_agg('full'::text)
  into bounced, why
  from (
    select
      n.position,
      l.depth + row_number() over (partition by n.sink, n.partition order by n.position) as depth
    from unnest(d_sink, d_partition, d_key, d_position) as n (sink, partition, key, position)
    join perdure.lanes l on l.sink = n.sink and l.partition = n.partition
    where not exists (select from perdure.deliveries k where k.key = n.key and k.sink = n.sink offset 0)
  ) as o
  where o.depth > p_lane_max;
  if bounced is not null then
    return;
  end if;
  perform perdure.enter_lanes(d_id, d_run, d_fence, d_sink, d_partition, d_key, d_payload, false);
  if cardinality(b_id) > 0 then
    insert into perdure.blobs (thread, digest, data)
    select b.thread, b.digest, b.data
    from unnest(b_id, b_thread, b_digest, b_data) as b (id, thread, digest, data)
    where exists (select from perdure.deliveries d where d.id = b.id offset 0)
    order by b.thread, b.digest
    on conflict do nothing;
  end if;
end
$$;

-- Write the bills of these runs, which have just ended.
create or replace function perdure.bill(p_runs bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_run bigint[];
  v_fence bigint[];
  v_sink text[];
  v_partition text[];
  v_key text[];
  v_payload bytea[];
  v_first bigint;
begin
  select
    array_agg(r.id order by r.id), array_agg(r.fence order by r.id), array_agg(r.bill_sink order by r.id),
    array_agg(t.thread_id order by r.id),
    array_agg(r.bill_key || case when b.count > 0 then ':' || b.count + 1 else '' end order by r.id),
    array_agg(convert_to(r.state, 'UTF8') order by r.id)
  into v_run, v_fence, v_sink, v_partition, v_key, v_payload
  from perdure.runs r
  join perdure.threads t on t.id = r.thread
  cross join lateral (select count(*) as count from perdure.deliveries d where d.run = r.id and d.bill) as b
  where r.id = any (p_runs)
    and r.bill_sink is not null;
  if v_run is null then
    return;
  end if;
  v_first := perdure.next_ids(cardinality(v_run));
  perform perdure.lock_lanes(v_sink, v_partition);
  perform perdure.enter_lanes(
    array(select v_first + o.n - 1 from generate_subscripts(v_run, 1) as o (n)),
    v_run, v_fence, v_sink, v_partition, v_key, v_payload, true
  );
end
$$;

-- Queue again what a worker has in its hands, but those that it keeps; `p_struck` says that it died with them. The
-- worker is locked.
create or replace function perdure.requeue_deliveries(p_worker bigint, p_keep bigint[], p_struck boolean) returns void
language plpgsql volatile
as $$
declare
  v_now bigint;
begin
  perform from perdure.deliveries d
  where d.worker = p_worker
    and d.id <> all (p_keep)
  order by d.id
  for no key update;
  if found then
    v_now := perdure.now_us();
    update perdure.deliveries d
    set state = 'queued', worker = null, due_at = v_now, strikes = d.strikes + p_struck::integer
    where d.worker = p_worker
      and d.id <> all (p_keep);
    perform pg_notify('perdure.hints', 'deliver');
  end if;
end
$$;

-- The suspects to these sinks that a relay may take, of each sink as many as it has places, those that are due longest
-- first. (3: SUSPECT_STRIKES. They are few, and have their own index.)
create or replace function perdure.suspects_due(
  p_sinks text[], p_limits bigint[], p_suspects bigint, p_now bigint
) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    select few.id
    from (
      select d.id, d.sink, d.due_at, row_number() over (partition by d.sink order by d.due_at, d.id) as number
      from perdure.deliveries d
      where d.state = 'queued'
        and d.ready
        and d.strikes >= 3
        and d.due_at <= p_now
        and d.sink = any (p_sinks)
    ) as few
    where few.number <= p_limits[array_position(p_sinks, few.sink)]
    order by few.due_at, few.id
    limit p_suspects
  );
end
$$;

-- Take deliveries for a worker's relay, of each sink at most so many, those that are due longest first; of suspects
-- (3: SUSPECT_STRIKES) so many in all, before the others. The worker's row is held against a take-over, as in a claim
-- of runs.
create or replace function perdure.claim_deliveries(
  p_worker bigint, p_sinks text[], p_limits bigint[], p_keep bigint[], p_suspects bigint
) returns setof perdure.outbox
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_ids bigint[];
  v_few bigint[];
  v_suspects bigint[];
  v_their_sinks text[];
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  if not found then
    return;
  end if;
  perform perdure.requeue_deliveries(p_worker, p_keep, false);
  v_now := perdure.now_us();
  v_few := perdure.suspects_due(p_sinks, p_limits, p_suspects, v_now);
  select array_agg(picked.id), array_agg(picked.sink)
  into v_suspects, v_their_sinks
  from (
    select d.id, d.sink
    from perdure.deliveries d
    where d.id = any (v_few)
      and d.state = 'queued'
      and d.ready
      and d.strikes >= 3
      and d.due_at <= v_now
    order by d.id
    for no key update skip locked
  ) as picked;
  v_ids := array(
    select due.id
    from unnest(p_sinks, p_limits) as s (sink, most)
    cross join lateral (
      select d.id
      from perdure.deliveries d
      where d.state = 'queued'
        and d.ready
        and d.sink = s.sink
        and d.strikes < 3
        and d.due_at <= v_now
      order by d.due_at, d.id
      limit s.most - coalesce(cardinality(array_positions(v_their_sinks, s.sink)), 0)
      for no key update skip locked
    ) as due
  ) || v_suspects;
  if v_ids = '{}' then
    return;
  end if;
  update perdure.deliveries d
  set state = 'delivering', worker = p_worker, attempts = d.attempts + 1
  where d.id = any (v_ids);
  return query
  select o.*
  from perdure.outbox o
  where o.id = any (v_ids)
  order by o.due_at, o.id;
end
$$;

-- Say what came of tries, of those that are still this worker's. A lane whose head is over gives the next its turn.
create or replace function perdure.settle_deliveries(
  p_worker bigint, s_id bigint[], s_attempt integer[], s_state text[], s_delay_us bigint[], s_error text[]
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_sink text[];
  v_partition text[];
  v_heads bigint[];
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  if not found then
    return;
  end if;
  perform from perdure.lanes l
  join (
    select d.sink, d.partition
    from unnest(s_id, s_state) as s (id, state)
    join perdure.deliveries d on d.id = s.id
    where s.state <> 'queued'
      and d.worker = p_worker
  ) as o on l.sink = o.sink and l.partition = o.partition
  order by l.sink, l.partition
  for no key update of l;
  perform from perdure.deliveries d
  where d.id = any (s_id)
    and d.worker = p_worker
  order by d.id
  for no key update;

  v_now := perdure.now_us();
  with settled as (
    update perdure.deliveries d
    set state = s.state,
        ready = s.state = 'queued',
        worker = null,
        strikes = 0,
        due_at = case when s.state = 'queued' then v_now + s.delay_us else d.due_at end,
        settled_at = v_now,
        error = case when s.state = 'delivered' then null else s.error end
    from unnest(s_id, s_attempt, s_state, s_delay_us, s_error) as s (id, attempt, state, delay_us, error)
    where d.id = s.id
      and d.worker = p_worker
      and d.attempts = s.attempt
    returning d.sink, d.partition, d.state
  )
  select array_agg(o.sink), array_agg(o.partition)
  into v_sink, v_partition
  from settled o
  where o.state <> 'queued';
  if v_sink is null then
    return;
  end if;
  update perdure.lanes l
  set depth = l.depth - 1 -- a lane has one head
  from unnest(v_sink, v_partition) as o (sink, partition)
  where l.sink = o.sink
    and l.partition = o.partition;
  v_heads := array(
    select n.id
    from unnest(v_sink, v_partition) as o (sink, partition)
    cross join lateral (
      select d.id
      from perdure.deliveries d
      where d.sink = o.sink
        and d.partition = o.partition
        and d.state = 'queued'
        and not d.ready
      order by d.seq
      limit 1
    ) as n
  );
  if v_heads <> '{}' then
    update perdure.deliveries d set ready = true where d.id = any (v_heads);
    perform pg_notify('perdure.hints', 'deliver');
  end if;
end
$$;

-- Send dead deliveries on, at the end of their lanes, in this order; what these all are then, by id.
create or replace function perdure.redeliver(p_ids bigint[]) returns setof perdure.outbox
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_sent boolean;
begin
  perform perdure.lock_lanes(array_agg(d.sink), array_agg(d.partition))
  from perdure.deliveries d
  where d.id = any (p_ids)
  having count(*) > 0;
  perform from perdure.deliveries d
  where d.id = any (p_ids)
    and coalesce(d.state = 'dead', false)
  order by d.id
  for no key update;

  v_now := perdure.now_us();
  with sent as (
    update perdure.deliveries d
    set state = 'queued',
        attempts = 0,
        strikes = 0,
        due_at = v_now,
        seq = o.last_seq + o.number,
        ready = o.depth = 0 and o.number = 1
    from (
      select
        e.id, l.last_seq, l.depth,
        row_number() over (partition by e.sink, e.partition order by min(i.position)) as number
      from unnest(p_ids) with ordinality as i (id, position)
      join perdure.deliveries e on e.id = i.id
      join perdure.lanes l on l.sink = e.sink and l.partition = e.partition
      where coalesce(e.state = 'dead', false)
      group by e.id, e.sink, e.partition, l.last_seq, l.depth
    ) as o
    where d.id = o.id
    returning d.sink, d.partition, d.ready
  ),
  moved as (
    update perdure.lanes l
    set depth = l.depth + s.count, last_seq = l.last_seq + s.count
    from (select sent.sink, sent.partition, count(*) as count from sent group by sent.sink, sent.partition) as s
    where l.sink = s.sink
      and l.partition = s.partition
  )
  select bool_or(sent.ready) into v_sent from sent;
  if v_sent then
    perform pg_notify('perdure.hints', 'deliver');
  end if;
  return query
  select o.*
  from perdure.outbox o
  where o.id = any (p_ids)
  order by o.id;
end
$$;
