-- Budgets. A budget's row is the lock of what is reserved in it; such rows are locked last, by id. Amounts are dollars,
-- tokens, tries and microseconds, in this order.

-- A sum, or the largest that is noted (`AMOUNT_MAX`) where that is less; it is not negative.
create or replace function perdure.capped(total numeric) returns bigint
language sql immutable
as $$ select least(greatest(total, 0), 4611686018427387903)::bigint $$;

create or replace function perdure.plus(a bigint, b bigint) returns bigint
language sql immutable
as $$ select perdure.capped(a::numeric + b) $$;

-- Budgets as they are read: what was reserved by a claim that is over counts as spent. The columns are those of
-- `budgets.BudgetRow`.
create or replace view perdure.accounts as
select
  b.id, b.name, b.limits,
  array(
    select perdure.capped(b.spent[u.n] + l.over[u.n]) from generate_series(1, 4) as u (n) order by u.n
  ) as spent,
  array(
    select perdure.capped(l.live[u.n]) from generate_series(1, 4) as u (n) order by u.n
  ) as reserved,
  b.rev, b.created_at, b.updated_at, b.by
from perdure.budgets b
cross join lateral (
  select
    array[
      coalesce(sum(o.amounts[1]) filter (where o.is_live), 0), coalesce(sum(o.amounts[2]) filter (where o.is_live), 0),
      coalesce(sum(o.amounts[3]) filter (where o.is_live), 0), coalesce(sum(o.amounts[4]) filter (where o.is_live), 0)
    ] as live,
    array[
      coalesce(sum(o.amounts[1]) filter (where not o.is_live), 0),
      coalesce(sum(o.amounts[2]) filter (where not o.is_live), 0),
      coalesce(sum(o.amounts[3]) filter (where not o.is_live), 0),
      coalesce(sum(o.amounts[4]) filter (where not o.is_live), 0)
    ] as over
  from (
    select v.amounts, r.state = 'running' and r.fence = v.fence as is_live
    from perdure.reservations v
    join perdure.runs r on r.id = v.run
    where v.budget = b.id
  ) as o
) as l;

-- The budgets that a new run is given: its own, and all that its parent, which is locked, counts against; null for
-- none.
create or replace function perdure.given_budgets(p_parent bigint, p_own bigint) returns bigint[]
language plpgsql volatile
as $$
begin
  return nullif(
    coalesce((select r.budgets from perdure.runs r where r.id = p_parent), '{}') || array_remove(array[p_own], null)
    || array(
      select b.id
      from perdure.runs r
      join perdure.budgets b on b.name in ('agent:' || r.agent, 'tenant:' || r.tenant)
      where r.id = p_parent
    ),
    '{}'
  );
end
$$;

-- Those of these budgets, and of those in which one of these steps or runs has reserved, that there are; locked.
create or replace function perdure.lock_budgets(
  p_budgets bigint[], o_run bigint[], o_super_step integer[], o_key text[], p_runs bigint[]
) returns bigint[]
language plpgsql volatile
as $$
declare
  v_ids bigint[] := p_budgets || array(
    select v.budget
    from unnest(o_run, o_super_step, o_key) as o (run, super_step, key)
    join perdure.reservations v on v.run = o.run and v.super_step = o.super_step and v.key = o.key
  ) || array(select v.budget from perdure.reservations v where v.run = any (p_runs));
begin
  perform from perdure.budgets b where b.id = any (v_ids) order by b.id for no key update;
  return array(select b.id from perdure.budgets b where b.id = any (v_ids) order by b.id);
end
$$;

-- Reserve what tries may cost, and count what they have cost, one after the other: of kind 0 are reservations (of which
-- `o_known` asks whether their step is on record by now), of 1 a step's record, of 2 a try that is none (of which the
-- log knows whether it was told before: then a reservation is the next try's). Each names the next `o_count` of
-- `u_budget`. What finds its own work done changes nothing; nothing does where what this belongs to was not written.
-- A negative amount is one of which nobody knows how much: some must be left, and nothing is set aside. The result are
-- the positions of reservations for which a budget is too short; they alone are not written. Sums are kept here, so
-- that each budget is written once. The accounts of runs that have ended (`p_over`) are closed after all this.
create or replace function perdure.spend(
  p_written boolean, o_kind integer[], o_run bigint[], o_fence bigint[], o_super_step integer[], o_key text[],
  o_attempt integer[],
  o_usd bigint[], o_tokens bigint[], o_steps bigint[], o_us bigint[], o_known boolean[], o_count integer[],
  o_position integer[], u_budget bigint[], p_over bigint[] default '{}',
  out short integer[]
)
language plpgsql volatile
as $$
declare
  v_id bigint[];
  v_limit bigint[];
  v_spent bigint[];
  v_reserved bigint[];
  v_mine bigint[];
  v_amounts bigint[];
  v_from integer := 1;
  v_at integer;
  v_budget bigint;
  v_lacks boolean;
  v_old record;
begin
  if not p_written or cardinality(o_run) + cardinality(p_over) = 0 then
    return;
  end if;
  v_id := perdure.lock_budgets(u_budget, o_run, o_super_step, o_key, p_over);
  if v_id = '{}' then
    return;
  end if;
  select array_agg(b.limits order by b.id), array_agg(b.spent order by b.id), array_agg(b.reserved order by b.id)
  into v_limit, v_spent, v_reserved
  from perdure.budgets b
  where b.id = any (v_id);

  for i in 1 .. cardinality(o_run) loop
    v_amounts := array[o_usd[i], o_tokens[i], o_steps[i], o_us[i]];
    v_mine := u_budget[v_from : v_from + o_count[i] - 1];
    v_from := v_from + o_count[i];
    if o_kind[i] <> 1 then
      perform
      from perdure.reservations v
      where v.run = o_run[i]
        and v.super_step = o_super_step[i]
        and v.key = o_key[i]
        and v.fence = o_fence[i];
      continue when found = (o_kind[i] = 0);
    end if;
    if o_kind[i] = 2 then
      perform
      from perdure.attempts a
      where a.run = o_run[i]
        and a.super_step = o_super_step[i]
        and a.key = o_key[i]
        and a.attempt = o_attempt[i]
        and a.told;
      continue when found;
    end if;

    if o_kind[i] = 0 then
      if o_known[i] then
        perform
        from perdure.checkpoints c
        where c.run = o_run[i]
          and c.super_step = o_super_step[i]
          and c.key = o_key[i];
        continue when found;
      end if;
      v_lacks := false;
      foreach v_budget in array v_mine loop
        v_at := array_position(v_id, v_budget);
        for u in 1 .. 4 loop
          v_lacks := v_lacks or coalesce(
            v_amounts[u] <> 0
            and v_spent[v_at][u]::numeric + v_reserved[v_at][u] + abs(v_amounts[u]) > v_limit[v_at][u],
            false
          );
        end loop;
      end loop;
      if v_lacks then
        short := short || o_position[i];
        continue;
      end if;
      for u in 1 .. 4 loop
        v_amounts[u] := least(greatest(v_amounts[u], 0), 288230376151711744); -- RESERVED_MAX
      end loop;
    end if;

    -- What its step has reserved is released; where another claim had reserved it, and it is tried anew, it is spent.
    for v_old in
      delete from perdure.reservations v
      where v.run = o_run[i]
        and v.super_step = o_super_step[i]
        and v.key = o_key[i]
      returning v.budget, v.amounts
    loop
      v_at := array_position(v_id, v_old.budget);
      for u in 1 .. 4 loop
        v_reserved[v_at][u] := perdure.plus(v_reserved[v_at][u], -v_old.amounts[u]);
        if o_kind[i] = 0 then
          v_spent[v_at][u] := perdure.plus(v_spent[v_at][u], v_old.amounts[u]);
        end if;
      end loop;
    end loop;
    foreach v_budget in array v_mine loop
      v_at := array_position(v_id, v_budget);
      continue when v_at is null;
      for u in 1 .. 4 loop
        if o_kind[i] = 0 then
          v_reserved[v_at][u] := perdure.plus(v_reserved[v_at][u], v_amounts[u]);
        else
          v_spent[v_at][u] := perdure.plus(v_spent[v_at][u], v_amounts[u]);
        end if;
      end loop;
    end loop;
    if o_kind[i] = 0 then
      insert into perdure.reservations (run, budget, fence, super_step, key, amounts)
      select o_run[i], b.id, o_fence[i], o_super_step[i], o_key[i], v_amounts
      from unnest(v_mine) as b (id)
      where b.id = any (v_id);
    end if;
  end loop;

  update perdure.budgets b
  set spent = n.spent, reserved = n.reserved
  from (
    select
      v_id[o.n] as id,
      array[v_spent[o.n][1], v_spent[o.n][2], v_spent[o.n][3], v_spent[o.n][4]] as spent,
      array[v_reserved[o.n][1], v_reserved[o.n][2], v_reserved[o.n][3], v_reserved[o.n][4]] as reserved
    from generate_subscripts(v_id, 1) as o (n)
  ) as n
  where b.id = n.id
    and (b.spent <> n.spent or b.reserved <> n.reserved);
  perform perdure.close_accounts(p_over);
end
$$;

-- Count what tries of these runs, which have ended, have reserved, and nobody has settled, as spent for good.
create or replace function perdure.close_accounts(p_runs bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_ids bigint[] := array(select v.budget from perdure.reservations v where v.run = any (p_runs));
begin
  if v_ids = '{}' then
    return;
  end if;
  perform from perdure.budgets b where b.id = any (v_ids) order by b.id for no key update;
  with closed as (
    delete from perdure.reservations v
    where v.run = any (p_runs)
    returning v.budget, v.amounts
  ),
  sums as (
    select
      c.budget, sum(c.amounts[1]) as usd, sum(c.amounts[2]) as tokens, sum(c.amounts[3]) as steps,
      sum(c.amounts[4]) as us
    from closed c
    group by c.budget
  )
  update perdure.budgets b
  set spent = array[
        perdure.capped(b.spent[1] + s.usd), perdure.capped(b.spent[2] + s.tokens), perdure.capped(b.spent[3] + s.steps),
        perdure.capped(b.spent[4] + s.us)
      ],
      reserved = array[
        perdure.capped(b.reserved[1] - s.usd), perdure.capped(b.reserved[2] - s.tokens),
        perdure.capped(b.reserved[3] - s.steps), perdure.capped(b.reserved[4] - s.us)
      ]
  from sums s
  where b.id = s.budget;
end
$$;

-- Let questions that have just been asked be about budgets. One whose budget was set since it was read is not asked any
-- more; whoever sets it now waits for this, and finds the question.
create or replace function perdure.ask_about_budgets(
  i_run bigint[], i_super_step integer[], i_key text[], i_budget bigint[], i_rev bigint[]
) returns void
language plpgsql volatile
as $$
begin
  perform from perdure.budgets b where b.id = any (i_budget) order by b.id for no key update;
  update perdure.interrupts i
  set budget = q.budget,
      state = case
        when exists (select from perdure.budgets b where b.id = q.budget and b.rev = q.rev offset 0) then 'open'
        else 'withdrawn'
      end
  from unnest(i_run, i_super_step, i_key, i_budget, i_rev) as q (run, super_step, key, budget, rev)
  where i.run = q.run
    and i.super_step = q.super_step
    and i.key = q.key
    and coalesce(i.state = 'open', false)
    and i.budget is null;
end
$$;

-- Set the limits of the budget of this name, made where there is none, and withdraw the questions about it; its id. The
-- runs that ask are locked before it, since their commits come to budgets last; one that has asked in between, so that
-- it is locked after it, may make a circle, which is met by repeating.
create or replace function perdure.set_budget(
  p_id bigint, p_name text, p_limits bigint[], p_by text, p_if_rev integer
) returns bigint
language plpgsql volatile
as $$
declare
  v_id bigint;
  v_now bigint;
  v_runs bigint[];
begin
  select b.id into v_id from perdure.budgets b where b.name = p_name;
  if found then
    perform perdure.lock_asking(v_id);
  end if;
  v_now := perdure.now_us();
  insert into perdure.budgets as b (id, rev, created_at, updated_at, name, by, limits)
  values (p_id, 1, v_now, v_now, p_name, p_by, p_limits)
  on conflict (name) do update
  set limits = excluded.limits, rev = b.rev + 1, updated_at = v_now, by = excluded.by
  where p_if_rev is null or b.rev = p_if_rev
  returning b.id into v_id;
  if v_id is null then
    return (select b.id from perdure.budgets b where b.name = p_name);
  end if;

  v_runs := perdure.lock_asking(v_id);
  if v_runs <> '{}' then
    update perdure.interrupts i set state = 'withdrawn' where i.state = 'open' and i.budget = v_id;
    perform perdure.wake(v_runs);
  end if;
  return v_id;
end
$$;

-- The runs that ask about a budget, locked.
create or replace function perdure.lock_asking(p_budget bigint) returns bigint[]
language plpgsql volatile
as $$
declare
  v_runs bigint[] := array(select i.run from perdure.interrupts i where i.state = 'open' and i.budget = p_budget);
begin
  if v_runs <> '{}' then
    perform from perdure.runs r where r.id = any (v_runs) order by r.id for no key update;
  end if;
  return v_runs;
end
$$;
