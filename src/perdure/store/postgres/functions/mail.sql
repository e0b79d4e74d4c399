-- Mailboxes. A thread's row is the lock of its mailbox: it counts what is in it and numbers what arrives. A message
-- that was received or buried leaves the mailbox; the row stays, so that its id is known (a received one for a while,
-- and without its payload).

-- The threads of these names, in order; null where there is none.
create or replace function perdure.threads_named(p_names text[]) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    select (select t.id from perdure.threads t where t.thread_id = n.name)
    from unnest(p_names) with ordinality as n (name, position)
    order by n.position
  );
end
$$;

-- The id of a message that can be received; null where it cannot.
create or replace function perdure.in_mailbox(p_thread bigint, p_seq bigint) returns bigint
language plpgsql volatile
as $$
begin
  return (
    select m.id
    from perdure.messages m
    where m.thread = p_thread
      and m.seq = p_seq
      and m.taken_at is null
      and m.dead is null
  );
end
$$;

-- Forget received messages of these threads that were known for long enough; the threads are locked. A thousand at
-- most: one send does not clean up for all that were not sent.
create or replace function perdure.forget_mail(p_threads bigint[], p_memory_us bigint) returns void
language plpgsql volatile
as $$
begin
  delete from perdure.messages m
  where m.id = any (
    array(
      select o.id
      from perdure.messages o
      where o.thread = any (p_threads)
        and o.key is null
        and o.taken_at < perdure.now_us() - p_memory_us
      limit 1000
    )
  );
end
$$;

-- Which of these arrivals find no room. All moves of the mailboxes come in their order: 1 is an arrival, -1 a
-- departure, 0 neither. The usual case needs no walk: there is room for all.
create or replace function perdure.without_room(p_thread bigint[], p_move integer[], p_mailbox_max bigint)
returns boolean[]
language plpgsql volatile
as $$
declare
  v_refused boolean[] := array_fill(false, array[cardinality(p_thread)]);
  v_threads bigint[];
  v_mail bigint[];
  v_at integer;
begin
  select array_agg(x.thread), array_agg(x.mail)
  into v_threads, v_mail
  from (
    select t.id as thread, coalesce(t.mail, 0) as mail
    from unnest(p_thread, p_move) as m (thread, move)
    join perdure.threads t on t.id = m.thread
    group by t.id
    having coalesce(t.mail, 0) + count(*) filter (where m.move = 1) > p_mailbox_max
  ) as x;
  if v_threads is null then
    return v_refused;
  end if;
  for i in 1 .. cardinality(p_thread) loop
    v_at := array_position(v_threads, p_thread[i]);
    if v_at is null then
      continue;
    end if;
    if p_move[i] = 1 and v_mail[v_at] >= p_mailbox_max then
      v_refused[i] := true;
    else
      v_mail[v_at] := v_mail[v_at] + p_move[i];
    end if;
  end loop;
  return v_refused;
end
$$;

-- The positions of closings and sends that bounce, and why: of these runs of the batch, which are the worker's, and
-- only what is not on record. The three kinds that move a mailbox count in the order of their positions in the batch.
create or replace function perdure.bounces(
  p_own bigint[],
  x_run bigint[], x_super_step integer[], x_key text[], x_thread bigint[], x_take bigint[], x_expired boolean[],
  x_position integer[],
  m_run bigint[], m_super_step integer[], m_key text[], m_id bigint[], m_thread bigint[], m_sent_key text[],
  m_position integer[], y_run bigint[], y_thread bigint[], y_seq bigint[], y_position integer[], p_mailbox_max bigint
) returns table ("position" integer, why text)
language plpgsql volatile
as $$
declare
  v_thread bigint[];
  v_move integer[];
  v_position integer[];
  v_refused boolean[];
begin
  return query
  select x.position, case when x.answered then 'answered' else 'gone' end
  from (
    select
      o.*,
      o.expired and exists (
        select
        from perdure.interrupts i
        where i.run = o.run and i.super_step = o.super_step and i.key = o.key and i.state = 'answered'
        offset 0
      ) as answered
    from unnest(x_run, x_super_step, x_key, x_thread, x_take, x_expired, x_position)
      as o (run, super_step, key, thread, take, expired, position)
    where o.run = any (p_own)
      and (o.expired or o.take is not null)
  ) as x
  where (x.answered or (x.take is not null and perdure.in_mailbox(x.thread, x.take) is null))
    and not exists (
      select from perdure.checkpoints c where c.run = x.run and c.super_step = x.super_step and c.key = x.key
    );
  if cardinality(m_run) = 0 then
    return;
  end if;

  select
    array_agg(e.thread order by e.position), array_agg(e.move order by e.position),
    array_agg(e.position order by e.position)
  into v_thread, v_move, v_position
  from (
    select m.thread, 1 as move, m.position
    from unnest(m_run, m_super_step, m_key, m_id, m_thread, m_sent_key, m_position)
      as m (run, super_step, key, id, thread, sent_key, position)
    where m.run = any (p_own)
      and perdure.arrived(m.thread, m.id, m.sent_key) is null
      and not exists (
        select from perdure.checkpoints c where c.run = m.run and c.super_step = m.super_step and c.key = m.key
      )
    union all
    select x.thread, -1, x.position
    from unnest(x_run, x_thread, x_take, x_position) as x (run, thread, take, position)
    where x.run = any (p_own)
      and x.take is not null
      and perdure.in_mailbox(x.thread, x.take) is not null
    union all
    select y.thread, -1, y.position
    from unnest(y_run, y_thread, y_seq, y_position) as y (run, thread, seq, position)
    where y.run = any (p_own)
      and perdure.in_mailbox(y.thread, y.seq) is not null
  ) as e;
  if v_thread is null then
    return;
  end if;
  v_refused := perdure.without_room(v_thread, v_move, p_mailbox_max);
  return query
  select e.position, case when e.thread is null then 'no_thread' else 'full' end
  from unnest(v_position, v_move, v_thread, v_refused) as e (position, move, thread, refused)
  where e.move = 1
    and (e.thread is null or e.refused);
end
$$;

-- The message that has arrived in a thread's mailbox with this id, or under this key of its sender's; null for none.
create or replace function perdure.arrived(p_thread bigint, p_id bigint, p_key text) returns bigint
language plpgsql stable
as $$
begin
  return coalesce(
    (select m.id from perdure.messages m where m.id = p_id),
    case
      when p_key is not null then (select m.id from perdure.messages m where m.thread = p_thread and m.key = p_key)
    end
  );
end
$$;

-- Put messages into the mailboxes of threads that are locked, in this order, and wake who waits for them; those with
-- known ids or keys have arrived. No id and no key comes twice.
create or replace function perdure.deliver(
  m_id bigint[], m_thread bigint[], m_sender text[], m_label text[], m_payload bytea[], m_sent_key text[],
  b_thread bigint[], b_digest bytea[], b_data bytea[]
) returns void
language plpgsql volatile
as $$
declare
  v_threads bigint[];
  v_labels text[];
begin
  with arrived as (
    insert into perdure.messages (id, thread, seq, sent_at, sender, label, key, payload)
    select
      m.id, m.thread, coalesce(t.last_message, 0) + row_number() over (partition by m.thread order by m.position),
      perdure.now_us(), m.sender, m.label, m.sent_key, m.payload
    from unnest(m_id, m_thread, m_sender, m_label, m_payload, m_sent_key) with ordinality
      as m (id, thread, sender, label, payload, sent_key, position)
    join perdure.threads t on t.id = m.thread
    where perdure.arrived(m.thread, m.id, m.sent_key) is null
    returning thread, label
  )
  select array_agg(arrived.thread), array_agg(arrived.label) into v_threads, v_labels from arrived;
  if v_threads is null then
    return;
  end if;

  update perdure.threads t
  set mail = coalesce(t.mail, 0) + m.count, last_message = coalesce(t.last_message, 0) + m.count
  from (select a.thread, count(*) as count from unnest(v_threads) as a (thread) group by a.thread) as m
  where t.id = m.thread;

  if cardinality(b_thread) > 0 then
    insert into perdure.blobs (thread, digest, data)
    select b.thread, b.digest, b.data
    from unnest(b_thread, b_digest, b_data) as b (thread, digest, data)
    where b.thread is not null
    order by b.thread, b.digest
    on conflict do nothing;
  end if;
  perform perdure.wake_receivers(v_threads, v_labels);
end
$$;

-- Put messages into mailboxes; one row for each, in order: where it is, or why it is nowhere.
create or replace function perdure.send(
  m_id bigint[], m_thread_id text[], m_sender text[], m_label text[], m_payload bytea[],
  b_message integer[], b_digest bytea[], b_data bytea[], p_mailbox_max bigint, p_memory_us bigint,
  m_sent_key text[] default null
) returns table (thread bigint, seq bigint, why text, id bigint)
language plpgsql volatile
as $$
declare
  v_thread bigint[] := perdure.threads_named(m_thread_id);
  v_move integer[];
  v_refused boolean[];
begin
  perform from perdure.threads t where t.id = any (v_thread) order by t.id for no key update;
  perform perdure.forget_mail(v_thread, p_memory_us);
  v_move := array(
    select case when perdure.arrived(m.thread, m.id, m.sent_key) is null then 1 else 0 end
    from unnest(m_id, v_thread, m_sent_key) with ordinality as m (id, thread, sent_key, position)
    order by m.position
  );
  v_refused := perdure.without_room(v_thread, v_move, p_mailbox_max);
  perform perdure.deliver(
    array_agg(m.id order by m.position), array_agg(m.thread order by m.position),
    array_agg(m.sender order by m.position), array_agg(m.label order by m.position),
    array_agg(m.payload order by m.position), array_agg(m.sent_key order by m.position),
    array(select case when not v_refused[b.message] then v_thread[b.message] end from unnest(b_message) as b (message)),
    b_digest, b_data
  )
  from unnest(m_id, v_thread, m_sender, m_label, m_payload, m_sent_key, v_refused) with ordinality
    as m (id, thread, sender, label, payload, sent_key, refused, position)
  where m.thread is not null
    and not m.refused
  having count(*) > 0;
  return query
  select
    k.thread, k.seq, case when k.id is not null then null when m.thread is null then 'no_thread' else 'full' end, k.id
  from unnest(m_id, v_thread, m_sent_key) with ordinality as m (id, thread, sent_key, position)
  left join perdure.messages k on k.id = perdure.arrived(m.thread, m.id, m.sent_key)
  order by m.position;
end
$$;

-- Put a dead letter back at the end of its mailbox; whether there was one.
create or replace function perdure.revive(p_message bigint) returns boolean
language plpgsql volatile
as $$
declare
  v_thread bigint;
  v_label text;
  v_seq bigint;
begin
  select m.thread, m.label into v_thread, v_label from perdure.messages m where m.id = p_message and m.dead is not null;
  if not found then
    return false;
  end if;
  select t.last_message + 1 into v_seq from perdure.threads t where t.id = v_thread for no key update;
  update perdure.messages m set dead = null, seq = v_seq where m.id = p_message and m.dead is not null;
  if not found then
    return false;
  end if;
  update perdure.threads t set mail = t.mail + 1, last_message = v_seq where t.id = v_thread;
  perform perdure.wake_receivers(array[v_thread], array[v_label]);
  return true;
end
$$;
