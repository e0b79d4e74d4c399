-- Waits, and the batches that have to do with them. Such a batch takes all its locks first, in the order that `commit`
-- keeps too (`wake.sql` has it), then sees whether anything of it is refused, and only then writes:
-- what `commit` writes, the openings, the closings, the mail, what ends with a super-step, and last the parkings, which
-- look at all that.
--
-- (`offset 0` keeps a subquery what it is, a look for one row by an index. Without it all rows of a table that seems to
-- be empty might be read once, to be looked up in memory.)

-- What these runs wait for, by run and key, and whether it is over by now: `due` where its time has come. A run is over
-- for whoever waits for it when it is terminal or held.
create or replace function perdure.waits_of(p_runs bigint[], p_mailbox_max bigint) returns table (
  run bigint, super_step integer, key text, kind smallint, opened_at bigint, due_at bigint, target bigint,
  labels text[], ready boolean, due boolean
)
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
begin
  return query
  select
    w.run, w.super_step, w.key, w.kind, w.opened_at, w.due_at, w.target, w.labels,
    coalesce(w.due_at <= v_now, false)
    or case w.kind
      when 1 then not exists (select from perdure.interrupts i where i.id = w.target and i.state = 'open' offset 0)
      when 2 then exists (
        select
        from perdure.messages m
        where m.thread = (select r.thread from perdure.runs r where r.id = w.run)
          and m.taken_at is null
          and m.dead is null
          and (w.labels is null or m.label = any (w.labels))
        offset 0
      )
      when 3 then exists (
        select
        from perdure.runs r
        where r.id = w.target
          and r.state in ('completed', 'failed', 'cancelled', 'held')
        offset 0
      )
      when 4 then not exists (
        select
        from perdure.threads t
        where t.id = w.target
          and coalesce(t.mail, 0) >= p_mailbox_max
        offset 0
      )
      else false
    end,
    coalesce(w.due_at <= v_now, false)
  from perdure.waits w
  where w.run = any (p_runs)
  order by w.run, w.key;
end
$$;

-- Write a batch of any kinds of changes. Beyond what `commit` says, `cancelled` forbids parkings that do not know of it
-- (`p_unaware`), `bounced` are the positions in the batch of changes that bounce, and `why`, where there are any (then
-- nothing was written), and `awake` are the runs that were not parked.
create or replace function perdure.commit_waits(
  p_worker bigint, p_runs bigint[], p_fences bigint[],
  c_run bigint[], c_fence bigint[], c_super_step integer[], c_key text[], c_kind smallint[], c_seq integer[],
  c_attempt integer[], c_digest bigint[], c_failed boolean[], c_payload bytea[], c_state bytea[],
  c_started_at bigint[], c_ended_at bigint[],
  b_thread bigint[], b_digest bytea[], b_data bytea[],
  a_run bigint[], a_fence bigint[], a_super_step integer[], a_key text[], a_attempt integer[], a_error bytea[],
  a_started_at bigint[], a_ended_at bigint[],
  n_run bigint[], n_super_step integer[],
  e_run bigint[], e_state text[],
  t_thread bigint[], t_ended integer[], t_snapshot_run bigint[], t_snapshot_step integer[],
  q_run bigint[], q_delay_us bigint[],
  d_run bigint[], d_key text[],
  h_run bigint[], h_reason text[], h_detail text[],
  o_run bigint[], o_super_step integer[], o_key text[], o_kind smallint[], o_thread bigint[], o_delay_us bigint[],
  o_due_at bigint[], o_target bigint[], o_labels text[],
  i_id bigint[], i_name text[], i_payload bytea[], i_schema bytea[], i_digest text[], i_on_timeout text[],
  i_assignee text[],
  x_run bigint[], x_super_step integer[], x_key text[], x_thread bigint[], x_filed boolean[], x_take bigint[],
  x_expired boolean[], x_position integer[],
  m_run bigint[], m_super_step integer[], m_key text[], m_id bigint[], m_thread_id text[], m_sender text[],
  m_label text[], m_payload bytea[], m_position integer[], mb_message integer[], mb_digest bytea[], mb_data bytea[],
  y_run bigint[], y_thread bigint[], y_seq bigint[], y_reason text[], y_position integer[],
  w_run bigint[], w_super_step integer[],
  p_parked bigint[], p_unaware bigint[], p_mailbox_max bigint, p_memory_us bigint,
  m_sent_key text[] default null,
  out alive boolean, out lost bigint[], out done bigint[], out cancelled bigint[],
  out bounced integer[], out why text[], out awake bigint[]
)
language plpgsql volatile
as $$
declare
  m_thread bigint[] := '{}';
  v_fresh boolean[];
  v_own bigint[];
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  alive := found;
  if not alive then
    return;
  end if;

  -- The mailboxes: those that are written, and those that somebody begins or goes on to wait for. (What a running run
  -- waits for, only its worker changes.)
  if cardinality(m_run) > 0 then
    m_thread := perdure.threads_named(m_thread_id);
  end if;
  perform from perdure.threads t
  where t.id = any (
    t_thread || m_thread || y_thread
    || array(select x.thread from unnest(x_thread, x_take) as x (thread, take) where x.take is not null)
    || array(
      select case o.kind when 2 then o.thread else o.target end
      from unnest(o_kind, o_thread, o_target) as o (kind, thread, target)
      where o.kind in (2, 4)
    )
    || array(
      select case w.kind when 2 then (select r.thread from perdure.runs r where r.id = w.run) else w.target end
      from perdure.waits w
      where w.run = any (p_parked)
        and w.kind in (2, 4)
    )
  )
  order by t.id
  for no key update;

  -- A run that is waited for is locked by whoever begins to wait, whoever waits by what it waits for.
  perform from perdure.runs r
  where r.id = any (
    n_run || e_run || q_run || h_run || o_run || x_run || m_run || y_run || w_run || p_parked
    || array(select o.target from unnest(o_target, o_kind) as o (target, kind) where o.kind = 3)
    || array(select w.run from perdure.waits w where w.target = any (e_run || h_run) and w.kind = 3)
  )
  order by r.id
  for no key update;

  select
    array_agg(t.run) filter (where r.fence = t.fence and r.state = 'running' and r.worker = p_worker),
    array_agg(t.run) filter (
      where r.fence = t.fence and r.state = 'running' and r.worker = p_worker and r.cancel is not null
    )
  into v_own, cancelled
  from unnest(p_runs, p_fences) as t (run, fence)
  left join perdure.runs r on r.id = t.run;
  if cancelled && p_unaware then
    return;
  end if;
  if cardinality(m_run) > 0 then
    perform perdure.forget_mail(m_thread, p_memory_us);
  end if;
  if cardinality(x_run) + cardinality(m_run) > 0 then
    select array_agg(b.position), array_agg(b.why)
    into bounced, why
    from perdure.bounces(
      v_own, x_run, x_super_step, x_key, x_thread, x_take, x_expired, x_position,
      m_run, m_super_step, m_key, m_id, m_thread, m_sent_key, m_position, y_run, y_thread, y_seq, y_position,
      p_mailbox_max
    ) as b;
    if bounced is not null then
      return;
    end if;
  end if;
  if cardinality(o_run) > 0 then
    v_fresh := perdure.fresh_waits(o_run, o_super_step, o_key);
  end if;

  select c.alive, c.lost, c.done, c.cancelled
  into alive, lost, done, cancelled
  from perdure.commit(
    p_worker, p_runs, p_fences,
    c_run, c_fence, c_super_step, c_key, c_kind, c_seq, c_attempt, c_digest, c_failed, c_payload, c_state,
    c_started_at, c_ended_at, b_thread, b_digest, b_data,
    a_run, a_fence, a_super_step, a_key, a_attempt, a_error, a_started_at, a_ended_at,
    n_run, n_super_step, e_run, e_state, t_thread, t_ended, t_snapshot_run, t_snapshot_step,
    q_run, q_delay_us, d_run, d_key, h_run, h_reason, h_detail
  ) as c;
  if not alive or lost is not null or done is not null or cancelled && array(
    select e.run from unnest(e_run, e_state) as e (run, state) where e.state <> 'cancelled'
  ) then
    return;
  end if;

  if cardinality(o_run) > 0 then
    perform perdure.open_waits(
      v_fresh, o_run, o_super_step, o_key, o_kind, o_delay_us, o_due_at, o_target, o_labels,
      i_id, i_name, i_payload, i_schema, i_digest, i_on_timeout, i_assignee
    );
  end if;
  if cardinality(x_run) + cardinality(y_thread) > 0 then
    perform perdure.close_waits(
      x_run, x_super_step, x_key, x_thread, x_filed, x_take, x_expired, y_thread, y_seq, y_reason, p_mailbox_max
    );
  end if;
  if cardinality(m_run) > 0 then
    perform perdure.deliver(
      m_id, m_thread, m_sender, m_label, m_payload, m_sent_key,
      array(select m_thread[b.message] from unnest(mb_message) as b (message)), mb_digest, mb_data
    );
  end if;
  if cardinality(w_run) > 0 then
    perform perdure.close_super_steps(w_run, w_super_step);
  end if;
  if cardinality(p_parked) > 0 then
    awake := perdure.park(p_parked, p_mailbox_max);
  end if;
end
$$;

-- Which of these openings begin something: not where the run waits already, or has waited, and not after the end of the
-- super-step.
create or replace function perdure.fresh_waits(o_run bigint[], o_super_step integer[], o_key text[]) returns boolean[]
language plpgsql volatile
as $$
begin
  return array(
    select
      o.super_step >= (select r.super_step from perdure.runs r where r.id = o.run)
      and not exists (
        select from perdure.waits w where w.run = o.run and w.super_step = o.super_step and w.key = o.key offset 0
      )
      and not exists (
        select from perdure.checkpoints c where c.run = o.run and c.super_step = o.super_step and c.key = o.key offset 0
      )
    from unnest(o_run, o_super_step, o_key) with ordinality as o (run, super_step, key, position)
    order by o.position
  );
end
$$;

-- OpenWait. The question that was asked under a key before is that one, open again where nobody answered. (What it says
-- of a budget follows.) A run that is waited for is marked, so that its end looks for those who wait; a claim may just
-- have passed over it.
create or replace function perdure.open_waits(
  p_fresh boolean[], o_run bigint[], o_super_step integer[], o_key text[], o_kind smallint[], o_delay_us bigint[],
  o_due_at bigint[], o_target bigint[], o_labels text[],
  i_id bigint[], i_name text[], i_payload bytea[], i_schema bytea[], i_digest text[], i_on_timeout text[],
  i_assignee text[]
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
  v_awaited bigint[];
begin
  insert into perdure.interrupts as i (
    id, run, created_at, expires_at, super_step, state, key, name, digest, on_timeout, assignee, payload, schema
  )
  select
    o.id, o.run, v_now, least(v_now + o.delay_us, o.due_at), o.super_step, 'open', o.key, o.name, o.digest,
    o.on_timeout, o.assignee, o.payload, o.schema
  from unnest(
    p_fresh, i_id, o_run, o_delay_us, o_due_at, o_super_step, o_key, i_name, i_digest, i_on_timeout, i_assignee,
    i_payload, i_schema
  ) as o (
    fresh, id, run, delay_us, due_at, super_step, key, name, digest, on_timeout, assignee, payload, schema
  )
  where o.fresh
    and o.id is not null
  on conflict (run, super_step, key) do update
  set state = 'open', expires_at = excluded.expires_at, budget = null
  where i.state in ('withdrawn', 'expired');

  insert into perdure.waits (run, opened_at, due_at, target, super_step, kind, key, labels)
  select
    o.run, v_now, least(v_now + o.delay_us, o.due_at),
    case
      when o.interrupt is null then o.target
      else (
        select i.id
        from perdure.interrupts i
        where i.run = o.run and i.super_step = o.super_step and i.key = o.key
      )
    end,
    o.super_step, o.kind, o.key,
    case when o.labels is not null then array(select jsonb_array_elements_text(o.labels::jsonb)) end
  from unnest(p_fresh, o_run, o_super_step, o_key, o_kind, o_delay_us, o_due_at, o_target, o_labels, i_id)
    as o (fresh, run, super_step, key, kind, delay_us, due_at, target, labels, interrupt)
  where o.fresh;

  if 3 = any (o_kind) then
    v_awaited := array(select o.target from unnest(o_target, o_kind) as o (target, kind) where o.kind = 3);
    update perdure.runs r set awaited = true where r.id = any (v_awaited) and not r.awaited;
    perform perdure.hint_passed_over(v_awaited);
  end if;
end
$$;

-- CloseWait, all but its record, and BuryMessage. An open question has expired, or is withdrawn if nobody waits any
-- more. A mailbox that is not full any more wakes whoever waits for that.
create or replace function perdure.close_waits(
  x_run bigint[], x_super_step integer[], x_key text[], x_thread bigint[], x_filed boolean[], x_take bigint[],
  x_expired boolean[], y_thread bigint[], y_seq bigint[], y_reason text[], p_mailbox_max bigint
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
  v_left bigint[];
  v_buried bigint[];
  v_roomy bigint[];
begin
  update perdure.interrupts i
  set state = case when x.expired then 'expired' else 'withdrawn' end
  from unnest(x_run, x_super_step, x_key, x_filed, x_expired) as x (run, super_step, key, filed, expired)
  where i.run = x.run
    and i.super_step = x.super_step
    and i.key = x.key
    and coalesce(i.state = 'open', false)
    and (
      x.expired
      or (
        not x.filed
        and exists (
          select from perdure.waits w where w.run = x.run and w.super_step = x.super_step and w.key = x.key
        )
      )
    );
  delete from perdure.waits w
  using unnest(x_run, x_super_step, x_key) as x (run, super_step, key)
  where w.run = x.run
    and w.super_step = x.super_step
    and w.key = x.key;

  with received as (
    update perdure.messages m
    set taken_at = v_now, payload = ''
    where m.id = any (
      array(select perdure.in_mailbox(x.thread, x.take) from unnest(x_thread, x_take) as x (thread, take))
    )
    returning m.thread
  )
  select array_agg(received.thread) into v_left from received;
  with buried as (
    update perdure.messages m
    set dead = y.reason
    from (
      select perdure.in_mailbox(o.thread, o.seq) as id, o.reason
      from unnest(y_thread, y_seq, y_reason) as o (thread, seq, reason)
      offset 0
    ) as y
    where m.id = y.id
    returning m.thread
  )
  select array_agg(buried.thread) into v_buried from buried;
  v_left := v_left || v_buried;
  if v_left is null then
    return;
  end if;
  with changed as (
    update perdure.threads t
    set mail = t.mail - l.count
    from (select u.thread, count(*) as count from unnest(v_left) as u (thread) group by u.thread) as l
    where t.id = l.thread
    returning t.id, t.mail, l.count
  )
  select array_agg(c.id) into v_roomy from changed c where c.mail < p_mailbox_max and c.mail + c.count >= p_mailbox_max;
  if v_roomy is not null then
    perform perdure.wake_senders(v_roomy);
  end if;
end
$$;

-- The super-steps before these are over: nobody waits in them any more.
create or replace function perdure.close_super_steps(w_run bigint[], w_super_step integer[]) returns void
language plpgsql volatile
as $$
begin
  delete from perdure.waits w
  using unnest(w_run, w_super_step) as o (run, super_step)
  where w.run = o.run
    and w.super_step < o.super_step;
  update perdure.interrupts i
  set state = 'withdrawn'
  from unnest(w_run, w_super_step) as o (run, super_step)
  where i.run = o.run
    and i.super_step = o.super_step - 1
    and coalesce(i.state = 'open', false);
end
$$;

-- ParkRun. Whoever could end a wait of these runs is locked out until this is written; those that need not wait any
-- more stay as they are, and are returned. (The number: NEVER_US.)
create or replace function perdure.park(p_runs bigint[], p_mailbox_max bigint) returns bigint[]
language plpgsql volatile
as $$
declare
  v_awake bigint[];
  v_claimable boolean;
begin
  select coalesce(array_agg(distinct w.run) filter (where w.ready), '{}')
  into v_awake
  from perdure.waits_of(p_runs, p_mailbox_max) as w;
  v_awake := v_awake || array(
    select p.run
    from unnest(p_runs) as p (run)
    where not exists (select from perdure.waits w where w.run = p.run)
  );
  with parked as (
    update perdure.runs r
    set state = 'waiting',
        worker = null,
        strikes = 0,
        ready_at = least(
          coalesce((select min(w.due_at) from perdure.waits w where w.run = r.id), 4611686018427387904), r.deadline_at
        )
    where r.id = any (p_runs)
      and r.id <> all (v_awake)
    returning r.ready_at
  )
  select bool_or(parked.ready_at <= perdure.now_us()) into v_claimable from parked;
  if v_claimable then
    perform perdure.hint_work();
  end if;
  return v_awake;
end
$$;
