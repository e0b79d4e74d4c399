-- Declare one worker dead and take its runs, if its lease has run out or its death is known; nothing where the row
-- is gone, finished, renewed, or locked by a commit. The row is marked before the runs are touched. (Only a running
-- run has a worker; to ask for its state as well would let another index be chosen.)
create or replace function perdure.take_over(
  p_worker bigint, p_known boolean, p_recoveries_max integer, out requeued bigint[], out held bigint[]
)
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_watched boolean;
  v_over bigint[];
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for update skip locked;
  if not found then
    return;
  end if;
  v_now := perdure.now_us();
  update perdure.workers w
  set state = 'dead', idle = false, ended_at = v_now
  where w.id = p_worker
    and w.state = 'alive'
    and (p_known or w.lease_until <= v_now);
  if not found then
    return;
  end if;
  perform perdure.requeue_deliveries(p_worker, '{}', true);

  -- Those that are about to be held are over for whoever waits for them.
  v_over := array(
    select r.id from perdure.runs r where r.worker = p_worker and r.awaited and r.strikes >= p_recoveries_max - 1
  );
  perform from perdure.runs r
  where r.id = any (
    array(select o.id from perdure.runs o where o.worker = p_worker)
    || array(select w.run from perdure.waits w where w.target = any (v_over) and w.kind = 3)
  )
  order by r.id
  for no key update;
  with struck as (
    select
      r.id,
      case
        when exists (
          select from perdure.checkpoints c
          where c.run = r.id and c.super_step = r.super_step and c.fence = r.fence
        ) or exists (
          select from perdure.effects e
          where e.run = r.id and e.fence = r.fence and e.state in ('undone', 'undo_failed')
        ) then 0
        else r.strikes + 1
      end as strikes
    from perdure.runs r
    where r.worker = p_worker
  ),
  moved as (
    update perdure.runs r
    set fence = r.fence + 1,
        recoveries = r.recoveries + 1,
        strikes = s.strikes,
        worker = null,
        state = case when s.strikes >= p_recoveries_max then 'held' else 'queued' end,
        reason = case when s.strikes >= p_recoveries_max then 'poison' end,
        detail = case when s.strikes >= p_recoveries_max
          then s.strikes || ' workers in a row died while they executed it, without one new checkpoint.'
        end
    from struck s
    where r.id = s.id
    returning r.id, r.state, r.watched
  )
  select
    coalesce(array_agg(moved.id order by moved.id) filter (where moved.state = 'queued'), '{}'),
    coalesce(array_agg(moved.id order by moved.id) filter (where moved.state = 'held'), '{}'),
    coalesce(bool_or(moved.watched) filter (where moved.state = 'held'), false)
  into requeued, held, v_watched
  from moved;

  if held <> '{}' then
    perform perdure.wake_waiters(held);
  end if;
  if v_watched then
    perform pg_notify('perdure.hints', 'ended');
  end if;
  if requeued <> '{}' then
    perform perdure.hint_work();
  end if;
end
$$;

-- Give back the runs that an alive worker holds, but those it keeps; how many. Its commits wait: the fences change. So
-- do its claims: one that is under way is seen here, and one that comes later finds that its ticket is too low.
create or replace function perdure.give_back(p_worker bigint, p_keep bigint[], p_ticket bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_count bigint;
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for update;
  if not found then
    return 0;
  end if;
  update perdure.workers w set ticket = p_ticket where w.id = p_worker and w.ticket <= p_ticket;
  if not found then
    return 0;
  end if;
  perform from perdure.runs r where r.worker = p_worker order by r.id for no key update;
  update perdure.runs r
  set state = 'queued', worker = null, fence = r.fence + 1
  where r.worker = p_worker
    and r.id <> all (p_keep);
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform perdure.hint_work();
  end if;
  return v_count;
end
$$;

-- End a worker's row and give back what it holds; the number of runs given back, 0 where the row is not alive.
create or replace function perdure.retire(p_worker bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_count bigint;
begin
  v_count := perdure.give_back(p_worker, '{}', 9223372036854775807);
  perform perdure.requeue_deliveries(p_worker, '{}', false);
  update perdure.workers w
  set state = 'stopped', idle = false, ended_at = perdure.now_us()
  where w.id = p_worker
    and w.state = 'alive';
  return v_count;
end
$$;
