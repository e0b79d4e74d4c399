-- Put runs on disk. No key and no run comes twice in one call, and a start that displaces others comes alone. Locks are
-- taken in one order everywhere: the parents' workers, keys in order, new threads by name, known threads by id, runs;
-- so groups that overlap wait for each other and never in a circle. (Parents come first, in a mode that only their
-- cancellation minds.)
--
-- Answers, in order: 0 the run is new; 1 it was there, or was joined; 2 the key has another digest; 3 the thread is
-- busy, or, where only a new one would do (`p_new_thread`), known; 4 the thread belongs to another agent; 5 the run was
-- there, from this very start; 6 the parent is gone; 7 the parent does not know of its cancellation; 8 the thread's
-- head has an open question (`depth` is its id).
--
-- (Processes that are older call `start`, which stays in the schemas that they know.)
create or replace function perdure.start_runs(
  s_id bigint[], s_thread bigint[], s_thread_id text[], s_agent text[], s_queue text[], s_priority integer[],
  s_delay_us bigint[], s_key text[], s_digest bytea[], s_payload bytea[], s_if_busy text[], s_tenant text[],
  s_tags text[], s_deadline_us bigint[], s_deadline_at bigint[], s_parent bigint[], s_parent_fence bigint[],
  s_parent_worker bigint[], s_parent_cancelled boolean[], s_detached boolean[], s_displaced bytea[],
  b_start integer[], b_digest bytea[], b_data bytea[], p_depth_max bigint, p_new_thread boolean,
  s_budget bigint[] default null, s_usd bigint[] default null, s_tokens bigint[] default null,
  s_steps bigint[] default null, s_us bigint[] default null, s_bill_sink text[] default null,
  s_bill_key text[] default null
) returns table (answer integer, run bigint, thread_id text, depth bigint, agent text)
language plpgsql volatile
as $$
declare
  v_count integer := cardinality(s_id);
  v_now bigint;
  v_keyed boolean := num_nonnulls(variadic s_key) > 0;
  v_parented boolean := num_nonnulls(variadic s_parent) > 0;
  v_made bigint[];
  v_threads bigint[];
  v_known bigint[];
  v_fresh boolean;
  v_answer integer[] := array_fill(0, array[v_count]);
  v_run bigint[] := s_id;
  v_thread bigint[] := s_thread;
  v_thread_id text[] := s_thread_id;
  v_ordinal bigint[] := array_fill(1::bigint, array[v_count]);
  v_ready boolean[] := array_fill(true, array[v_count]);
  v_depth bigint[] := array_fill(0::bigint, array[v_count]);
  v_agent text[] := s_agent;
  v_one_run bigint;
  v_one_digest bytea;
  v_one_thread bigint;
  v_one_thread_id text;
  v_one_ordinal bigint;
  v_one_depth bigint;
  v_one_agent text;
begin
  if v_parented then
    perform from perdure.workers w where w.id = any (s_parent_worker) order by w.id for key share;
    perform from perdure.runs r where r.id = any (s_parent) order by r.id for key share;
    v_answer := perdure.check_parents(s_parent, s_parent_fence, s_parent_worker, s_parent_cancelled);
  end if;
  v_now := perdure.now_us();

  if v_keyed then
    insert into perdure.starts (run, key, digest)
    select s.id, s.key, s.digest
    from unnest(v_answer, s_id, s_key, s_digest) as s (answer, id, key, digest)
    where s.key is not null
      and s.answer = 0
    order by s.key collate "C"
    on conflict do nothing;
  end if;

  with made as (
    insert into perdure.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
    select distinct on (s.thread_id collate "C") s.thread, 1, 1, v_now, s.id, s.thread_id, s.agent
    from unnest(v_answer, s_id, s_thread, s_thread_id, s_agent, s_key) with ordinality
      as s (answer, id, thread, thread_id, agent, key, position)
    where s.answer = 0
      and (not v_keyed or not exists (select from perdure.starts k where k.key = s.key and k.run <> s.id))
    order by s.thread_id collate "C", s.position
    on conflict do nothing
    returning id
  )
  select array_agg(made.id) into v_made from made;

  -- All threads are new (so no key, no run and no other agent was there before): nothing is left to decide.
  v_fresh := cardinality(v_made) = v_count;

  if v_fresh is not true then
    select array_agg(t.id) into v_threads from perdure.threads t where t.thread_id = any (s_thread_id);
    perform from perdure.threads t
    where t.id = any (v_threads)
    order by t.id
    for no key update;
    select array_agg(r.id) into v_known from perdure.runs r where r.id = any (s_id);

    for i in 1 .. v_count loop
      if s_id[i] = any (v_known) then
        v_answer[i] := 5;
        continue;
      end if;
      if v_answer[i] <> 0 then
        v_run[i] := s_parent[i];
        continue;
      end if;
      if s_key[i] is not null then
        select k.run, k.digest into v_one_run, v_one_digest from perdure.starts k where k.key = s_key[i];
        if v_one_run <> s_id[i] then
          v_answer[i] := case when v_one_digest = s_digest[i] then 1 else 2 end;
          select t.thread_id
          into v_one_thread_id
          from perdure.runs r
          join perdure.threads t on t.id = r.thread
          where r.id = v_one_run;
          v_run[i] := v_one_run;
          v_thread_id[i] := v_one_thread_id;
          continue;
        end if;
      end if;
      if s_thread[i] = any (v_made) then
        continue;
      end if;

      -- A known thread: what is in the way, and then the run's place.
      select t.id, t.agent, t.head, t.depth
      into v_one_thread, v_one_agent, v_one_run, v_one_depth
      from perdure.threads t
      where t.thread_id = s_thread_id[i];
      v_answer[i] := case
        when v_one_agent <> s_agent[i] then 4
        when p_new_thread then 3
        when v_one_run is null or s_if_busy[i] in ('interrupt', 'rollback') then 0
        when s_if_busy[i] = 'join' then 1
        when s_if_busy[i] = 'reject' then 3
        else 0
      end;
      if v_answer[i] = 0 and v_one_run is not null and s_if_busy[i] = 'unless_asked' then
        v_one_ordinal := perdure.oldest_question(v_one_run);
        if v_one_ordinal is not null then
          v_answer[i] := 8;
          v_one_depth := v_one_ordinal;
        end if;
      end if;
      if v_answer[i] = 0 and s_if_busy[i] in ('enqueue', 'unless_asked') and v_one_depth >= p_depth_max then
        v_answer[i] := 3;
      end if;
      if v_answer[i] = 0 then
        if v_one_run is not null and s_if_busy[i] in ('interrupt', 'rollback') then
          perform perdure.displace(
            v_one_thread, s_if_busy[i] = 'rollback', 'r' || s_id[i] || ' was started in its place', s_displaced[i]
          );
        end if;
        update perdure.threads t
        set depth = t.depth + 1,
            last_ordinal = t.last_ordinal + 1,
            head = coalesce(t.head, s_id[i])
        where t.id = v_one_thread
        returning t.last_ordinal, t.head
        into v_one_ordinal, v_one_run;
        v_thread[i] := v_one_thread;
        v_ordinal[i] := v_one_ordinal;
        v_ready[i] := v_one_run = s_id[i];
        continue;
      end if;
      v_run[i] := v_one_run;
      v_depth[i] := v_one_depth;
      v_agent[i] := v_one_agent;
      if s_key[i] is not null and v_answer[i] = 1 then
        update perdure.starts k set run = v_one_run where k.key = s_key[i] and k.run = s_id[i];
      elsif s_key[i] is not null then
        delete from perdure.starts k where k.key = s_key[i] and k.run = s_id[i];
      end if;
    end loop;
  end if;

  -- (A run's digest is compared in `starts` alone.)
  insert into perdure.runs (
    id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready,
    state, agent, queue, key, tenant, tags, digest, parent, deadline_at, detached, budgets, bill_sink, bill_key
  )
  select
    s.id, s.thread, s.ordinal, least(v_now + s.delay_us, v_now + s.deadline_us, s.deadline_at), 0, v_now, s.priority,
    0, 0, 0, 1, s.ready, 'queued', s.agent, s.queue, s.key, s.tenant,
    case when s.tags is null then '{}' else array(select jsonb_array_elements_text(s.tags::jsonb)) end,
    '', s.parent, least(v_now + s.deadline_us, s.deadline_at), s.detached,
    case when num_nonnulls(s.parent, s.budget) > 0 then perdure.given_budgets(s.parent, s.budget) end,
    s.bill_sink, s.bill_key
  from unnest(
    v_answer, s_id, v_thread, v_ordinal, s_delay_us, s_priority, v_ready, s_agent, s_queue, s_key, s_tenant, s_tags,
    s_parent, s_deadline_us, s_deadline_at, s_detached, s_budget, s_bill_sink, s_bill_key
  ) as s (
    answer, id, thread, ordinal, delay_us, priority, ready, agent, queue, key, tenant, tags, parent, deadline_us,
    deadline_at, detached, budget, bill_sink, bill_key
  )
  where s.answer = 0;

  if s_budget is not null then
    insert into perdure.budgets (id, rev, created_at, updated_at, name, limits)
    select s.budget, 1, v_now, v_now, 'run:r' || s.id, array[s.usd, s.tokens, s.steps, s.us]
    from unnest(v_answer, s_id, s_budget, s_usd, s_tokens, s_steps, s_us)
      as s (answer, id, budget, usd, tokens, steps, us)
    where s.answer = 0
      and s.budget is not null
    order by s.budget;
  end if;

  insert into perdure.checkpoints (
    run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload
  )
  select s.id, 0, 0, 0, v_now, v_now, 1, 0, 0, 1, false, '', s.payload
  from unnest(v_answer, s_id, s_payload) as s (answer, id, payload)
  where s.answer = 0;

  if cardinality(b_start) > 0 then
    insert into perdure.blobs (thread, digest, data)
    select v_thread[b.start], b.digest, b.data
    from unnest(b_start, b_digest, b_data) as b (start, digest, data)
    where v_answer[b.start] = 0
    order by 1, 2
    on conflict do nothing;
  end if;

  if 0 = any (v_answer) then
    perform perdure.hint_work();
  end if;
  return query
  select s.answer, s.run, s.thread_id, s.depth, s.agent
  from unnest(v_answer, v_run, v_thread_id, v_depth, v_agent) as s (answer, run, thread_id, depth, agent);
end
$$;

-- For each start: 0 where it has no parent, or one that may start it; else 6 or 7. The rows are locked, those of the
-- workers too.
create or replace function perdure.check_parents(
  s_parent bigint[], s_fence bigint[], s_worker bigint[], s_cancelled boolean[]
) returns integer[]
language plpgsql volatile
as $$
begin
  return array(
    select
      case
        when s.parent is null then 0
        when r.state is distinct from 'running' or r.fence <> s.fence or r.worker <> s.worker then 6
        when w.state is distinct from 'alive' then 6
        when r.cancel is not null and not s.cancelled then 7
        else 0
      end
    from unnest(s_parent, s_fence, s_worker, s_cancelled) with ordinality
      as s (parent, fence, worker, cancelled, position)
    left join perdure.runs r on r.id = s.parent
    left join perdure.workers w on w.id = s.worker
    order by s.position
  );
end
$$;

-- The oldest open interrupt of a run; null if it has none. (`+ 0`, so that it is looked for among the run's own.)
create or replace function perdure.oldest_question(p_run bigint) returns bigint
language plpgsql volatile
as $$
begin
  return (
    select min(i.id + 0)
    from perdure.interrupts i
    where i.run = p_run
      and i.super_step = (select r.super_step from perdure.runs r where r.id = p_run)
      and coalesce(i.state = 'open', false)
      and coalesce(i.expires_at > perdure.now_us(), true)
  );
end
$$;

-- Let a run that has just been put on a new thread go on from a checkpoint of another: move its boundary to this
-- super-step, with this state before it and these records in it. A base says that it has something to read at its first
-- claim, and where its thread's state was before it.
create or replace function perdure.fork(
  p_run bigint, p_super_step integer, p_state bytea,
  c_super_step integer[], c_key text[], c_kind smallint[], c_seq integer[], c_fence bigint[], c_worker bigint[],
  c_attempt integer[], c_digest bigint[], c_failed boolean[], c_payload bytea[], c_state bytea[],
  c_started_at bigint[], c_ended_at bigint[]
) returns void
language plpgsql volatile
as $$
begin
  update perdure.checkpoints c
  set super_step = p_super_step, state = p_state
  where c.run = p_run
    and c.super_step = 1
    and c.key = '';
  insert into perdure.checkpoints (
    run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload, state
  )
  select
    p_run, c.fence, c.worker, c.digest, c.started_at, c.ended_at, c.super_step, c.seq, c.attempt, c.kind, c.failed,
    c.key, c.payload, c.state
  from unnest(
    c_super_step, c_key, c_kind, c_seq, c_fence, c_worker, c_attempt, c_digest, c_failed, c_payload, c_state,
    c_started_at, c_ended_at
  ) as c (
    super_step, key, kind, seq, fence, worker, attempt, digest, failed, payload, state, started_at, ended_at
  );
  update perdure.runs r
  set super_step = p_super_step,
      base_run = case when p_state is not null then p_run end,
      base_step = case when p_state is not null then p_super_step else 0 end
  where r.id = p_run;
  if p_state is not null then
    update perdure.threads t
    set snapshot_run = p_run, snapshot_step = p_super_step
    where t.id = (select r.thread from perdure.runs r where r.id = p_run);
  end if;
end
$$;
