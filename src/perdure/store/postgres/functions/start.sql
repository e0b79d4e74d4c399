-- Put runs on disk. No key and no run comes twice in one call. Locks are taken in one order everywhere: keys in order,
-- new threads by name, known threads by id; so groups that overlap wait for each other and never in a circle.
--
-- Answers, in order: 0 the run is new; 1 it was there, or was joined; 2 the key has another digest; 3 the thread is
-- busy; 4 the thread belongs to another agent.
create or replace function perdure.start(
  s_id bigint[], s_thread bigint[], s_thread_id text[], s_agent text[], s_queue text[], s_priority integer[],
  s_delay_us bigint[], s_key text[], s_digest bytea[], s_payload bytea[], s_if_busy text[], s_tenant text[],
  s_tags text[], b_start integer[], b_digest bytea[], b_data bytea[], p_depth_max bigint
) returns table (answer integer, run bigint, thread_id text, depth bigint, agent text)
language plpgsql volatile
as $$
declare
  v_count integer := cardinality(s_id);
  v_now bigint := perdure.now_us();
  v_keyed boolean := num_nonnulls(variadic s_key) > 0;
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
  if v_keyed then
    insert into perdure.starts (run, key, digest)
    select s.id, s.key, s.digest
    from unnest(s_id, s_key, s_digest) as s (id, key, digest)
    where s.key is not null
    order by s.key collate "C"
    on conflict do nothing;
  end if;

  with made as (
    insert into perdure.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
    select distinct on (s.thread_id collate "C") s.thread, 1, 1, v_now, s.id, s.thread_id, s.agent
    from unnest(s_id, s_thread, s_thread_id, s_agent, s_key) with ordinality
      as s (id, thread, thread_id, agent, key, position)
    where not v_keyed
      or not exists (select from perdure.starts k where k.key = s.key and k.run <> s.id)
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

      update perdure.threads t
      set depth = t.depth + 1,
          last_ordinal = t.last_ordinal + 1,
          head = coalesce(t.head, s_id[i])
      where t.thread_id = s_thread_id[i]
        and t.agent = s_agent[i]
        and (t.depth = 0 or (s_if_busy[i] = 'enqueue' and t.depth < p_depth_max))
      returning t.id, t.last_ordinal, t.head
      into v_one_thread, v_one_ordinal, v_one_run;
      if found then
        v_thread[i] := v_one_thread;
        v_ordinal[i] := v_one_ordinal;
        v_ready[i] := v_one_run = s_id[i];
        continue;
      end if;
      select t.agent, t.head, t.depth
      into v_one_agent, v_one_run, v_one_depth
      from perdure.threads t
      where t.thread_id = s_thread_id[i];
      v_answer[i] := case when v_one_agent <> s_agent[i] then 4 when s_if_busy[i] = 'join' then 1 else 3 end;
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

  insert into perdure.runs (
    id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready,
    state, agent, queue, key, tenant, tags, digest
  )
  select
    s.id, s.thread, s.ordinal, v_now + s.delay_us, 0, v_now, s.priority, 0, 0, 0, 1, s.ready,
    'queued', s.agent, s.queue, s.key, s.tenant,
    case when s.tags is null then '{}' else array(select jsonb_array_elements_text(s.tags::jsonb)) end,
    s.digest
  from unnest(
    v_answer, s_id, v_thread, v_ordinal, s_delay_us, s_priority, v_ready, s_agent, s_queue, s_key, s_tenant, s_tags,
    s_digest
  ) as s (
    answer, id, thread, ordinal, delay_us, priority, ready, agent, queue, key, tenant, tags, digest
  )
  where s.answer = 0;

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
  select case when s.answer = 5 then 0 else s.answer end, s.run, s.thread_id, s.depth, s.agent
  from unnest(v_answer, v_run, v_thread_id, v_depth, v_agent) as s (answer, run, thread_id, depth, agent);
end
$$;
