-- Take claimable runs for a worker, highest priority first, then oldest, then by id. The worker's row is held against a
-- take-over as in a commit; a claim with a ticket below the row's comes too late. Each priority in each lane (a queue's
-- runs of an agent) is a range of the index that ends at now, so that runs which are not due, and other lanes, cost
-- nothing, however many there are. What of a run is to be read besides comes with it: of one that was never claimed
-- before, unless it is a fork, there is nothing. A parked run whose time has come is due like any other; one without a
-- time is not in the index. The log is read in a later snapshot than the one that found the runs: it holds all that
-- their previous owners committed.
create or replace function perdure.claim(
  p_worker bigint, p_agents text[], p_queues text[], p_deployment text, p_limit bigint, p_suspects bigint,
  p_ticket bigint
) returns table (
  run bigint, thread bigint, thread_id text, agent text, fence bigint, super_step integer, attempt integer,
  recoveries integer, strikes integer, created_at bigint, arguments bytea, state bytea, now bigint, tenant text,
  priority integer, deadline_at bigint, cancel text, undo_outcome text, undo_payload bytea, recorded boolean,
  tried boolean, waits boolean, effects boolean, budgets bigint[]
)
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_priority integer;
  v_below bigint := 2147483648;
  v_ids bigint[] := '{}';
  v_best bigint[];
  v_more bigint[];
  v_named boolean;
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  if not found then
    return;
  end if;
  perform from perdure.workers w where w.id = p_worker and w.ticket <= p_ticket;
  if not found then
    return;
  end if;
  v_now := perdure.now_us();

  loop
    select max(top.priority)
    into v_priority
    from unnest(p_queues) as q (queue)
    cross join unnest(p_agents) as a (agent)
    cross join lateral (
      select r.priority
      from perdure.runs r
      where r.state in ('queued', 'waiting')
        and r.ready
        and r.ready_at < 4611686018427387904
        and r.queue = q.queue
        and r.agent = a.agent
        and r.priority < v_below
      order by r.priority desc
      limit 1
    ) as top;
    exit when v_priority is null or cardinality(v_ids) >= p_limit;
    v_below := v_priority;

    -- The best of all lanes, then a lock on those alone.
    select array_agg(best.id)
    into v_best
    from (
      select due.id
      from unnest(p_queues) as q (queue)
      cross join unnest(p_agents) as a (agent)
      cross join lateral (
        select r.id, r.ready_at
        from perdure.runs r
        where r.state in ('queued', 'waiting')
          and r.ready
          and r.ready_at < 4611686018427387904
          and r.queue = q.queue
          and r.agent = a.agent
          and r.priority = v_priority
          and r.ready_at <= v_now
          and r.strikes < 3
          and coalesce(r.deployment, p_deployment) = p_deployment
        order by r.ready_at, r.id
        limit p_limit - cardinality(v_ids)
      ) as due
      order by due.ready_at, due.id
      limit p_limit - cardinality(v_ids)
    ) as best;
    continue when v_best is null;
    select array_agg(picked.id) filter (
      where picked.state in ('queued', 'waiting') and picked.ready and picked.ready_at <= v_now
    )
    into v_more
    from (
      select r.id, r.state, r.ready, r.ready_at
      from perdure.runs r
      where r.id = any (v_best)
      for no key update skip locked
    ) as picked;

    -- Another worker was at the same ones: pass over what it has locked, lane by lane.
    if cardinality(v_more) is distinct from cardinality(v_best) then
      select array_agg(picked.id)
      into v_more
      from (
        select due.id
        from unnest(p_queues) as q (queue)
        cross join unnest(p_agents) as a (agent)
        cross join lateral (
          select r.id, r.ready_at
          from perdure.runs r
          where r.state in ('queued', 'waiting')
            and r.ready
            and r.ready_at < 4611686018427387904
            and r.queue = q.queue
            and r.agent = a.agent
            and r.priority = v_priority
            and r.ready_at <= v_now
            and r.strikes < 3
            and coalesce(r.deployment, p_deployment) = p_deployment
          order by r.ready_at, r.id
          limit p_limit - cardinality(v_ids)
          for no key update skip locked
        ) as due
        order by due.ready_at, due.id
        limit p_limit - cardinality(v_ids)
      ) as picked;
    end if;
    v_ids := v_ids || v_more;
  end loop;

  select array_agg(picked.id)
  into v_more
  from (
    select r.id
    from perdure.runs r
    where r.state in ('queued', 'waiting')
      and r.ready
      and r.ready_at < 4611686018427387904
      and r.strikes >= 3
      and r.ready_at <= v_now
      and r.agent = any (p_agents)
      and r.queue = any (p_queues)
      and coalesce(r.deployment, p_deployment) = p_deployment
    order by r.priority desc, r.ready_at, r.id
    limit least(p_suspects, p_limit)
    for no key update skip locked
  ) as picked;
  if v_more is not null then
    select array_agg(best.id)
    into v_ids
    from (
      select r.id
      from perdure.runs r
      where r.id = any (v_ids || v_more)
      order by r.priority desc, r.ready_at, r.id
      limit p_limit
    ) as best;
  end if;
  if v_ids = '{}' then
    return;
  end if;

  update perdure.runs r
  set state = 'running',
      worker = p_worker,
      fence = r.fence + 1,
      attempt = r.attempt + 1,
      deployment = p_deployment,
      started_at = coalesce(r.started_at, v_now)
  where r.id = any (v_ids);

  -- Those of agents and tenants are looked for where there are any.
  v_named := exists (select from perdure.budgets b where b.name >= 'agent:' and b.name < 'agent;' offset 0)
    or exists (select from perdure.budgets b where b.name >= 'tenant:' and b.name < 'tenant;' offset 0);
  return query
  select
    r.id, r.thread, t.thread_id, r.agent, r.fence, r.super_step, r.attempt, r.recoveries, r.strikes, r.created_at,
    b.payload,
    case
      when r.super_step > 1 then b.state
      else (
        select c.state
        from perdure.checkpoints c
        where c.run = t.snapshot_run and c.super_step = t.snapshot_step and c.key = ''
      )
    end,
    v_now, r.tenant, r.priority, r.deadline_at, r.cancel, r.undo_outcome, r.undo_payload,
    b.old and exists (
      select from perdure.checkpoints c where c.run = r.id and c.super_step = r.super_step and c.kind = 0 offset 0
    ),
    b.old and exists (
      select from perdure.attempts a where a.run = r.id and a.super_step = r.super_step offset 0
    ),
    b.old and exists (select from perdure.waits w where w.run = r.id offset 0),
    b.old and exists (
      select from perdure.effects e where e.run = r.id and e.super_step = r.super_step offset 0
    ),
    case
      when v_named then r.budgets || array(
        select b.id from perdure.budgets b where b.name in ('agent:' || r.agent, 'tenant:' || r.tenant)
      )
      else r.budgets
    end
  from perdure.runs r
  cross join lateral (
    select o.thread_id, o.snapshot_run, o.snapshot_step
    from perdure.threads o
    where o.id = r.thread
    limit 1
  ) as t
  cross join lateral (
    select c.payload, c.state, r.attempt > 1 or r.base_step is not null as old
    from perdure.checkpoints c
    where c.run = r.id and c.super_step = r.super_step and c.key = ''
    limit 1
  ) as b
  where r.id = any (v_ids)
  order by r.priority desc, r.ready_at, r.id;
end
$$;
