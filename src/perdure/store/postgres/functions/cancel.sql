-- Cancellation. A request stays on the run's row, and every end but that as cancelled looks there under the row's lock.

-- Those of these runs, and of what is below them without the detached ones, whose cancellation can be requested: once,
-- but one that is held can be ended by it all the same.
create or replace function perdure.may_be_cancelled(p_runs bigint[]) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    with recursive tree (id) as (
      select unnest(p_runs)
      union
      select c.id
      from tree
      cross join lateral (
        select o.id from perdure.runs o where o.parent = tree.id and not o.detached offset 0
      ) as c
    )
    select r.id
    from perdure.runs r
    where r.id = any (array(select tree.id from tree))
      and (r.cancel is null or r.state = 'held')
      and r.state not in ('completed', 'failed', 'cancelled')
    order by r.id
  );
end
$$;

-- Lock these runs, what is below them and whoever waits for one that will end at once (and the threads of those); those
-- whose cancellation can be requested. What was started in the meantime is looked for again, until there is nothing
-- new.
create or replace function perdure.lock_tree(p_runs bigint[]) returns bigint[]
language plpgsql volatile
as $$
declare
  v_tree bigint[] := perdure.may_be_cancelled(p_runs);
  v_locked bigint[] := '{}';
  v_over bigint[];
  v_threads bigint[];
begin
  while not v_tree <@ v_locked loop
    select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.thread), '{}')
    into v_over, v_threads
    from perdure.runs r
    where r.id = any (v_tree)
      and (r.attempt = 0 or r.state = 'held');
    perform from perdure.threads t where t.id = any (v_threads) order by t.id for no key update;
    perform from perdure.runs r
    where r.id = any (
      v_tree || array(select w.run from perdure.waits w where w.target = any (v_over) and w.kind = 3)
    )
    order by r.id
    for update; -- excludes the start of a child, which holds its parent `for key share`
    v_locked := v_locked || v_tree;
    v_tree := perdure.may_be_cancelled(p_runs);
  end loop;
  return v_tree;
end
$$;

-- Request the cancellation of these runs, which `lock_tree` returned; `p_payload` is how one ends that ends at once, or
-- once a worker has undone its effects, where it is held and has some.
create or replace function perdure.request_cancel(p_runs bigint[], p_reason text, p_payload bytea) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
  v_over bigint[];
  v_begun bigint[];
  v_held bigint[];
begin
  select
    array_agg(r.id) filter (where r.attempt = 0 or r.state = 'held'),
    coalesce(array_agg(r.id) filter (where r.attempt > 0 and r.state <> 'held'), '{}'),
    array_agg(r.id) filter (where r.state = 'held')
  into v_over, v_begun, v_held
  from perdure.runs r
  where r.id = any (p_runs);
  if v_held is not null then
    v_held := perdure.with_undoable(v_held, array['done', 'undoing']);
    v_over := nullif(array(select o.run from unnest(v_over) as o (run) where o.run <> all (v_held)), '{}');
  end if;
  if v_begun <> '{}' then
    update perdure.runs r
    set cancel = p_reason, ready_at = case when r.state = 'queued' then least(r.ready_at, v_now) else r.ready_at end
    where r.id = any (v_begun);
    perform perdure.wake(v_begun);
  end if;
  if v_held <> '{}' then
    update perdure.runs r
    set state = 'queued', ready_at = v_now, strikes = 0, reason = null, detail = null,
        cancel = p_reason,
        undo_payload = case when r.undo_outcome is null then p_payload else r.undo_payload end,
        undo_outcome = coalesce(r.undo_outcome, 'cancelled')
    where r.id = any (v_held);
    perform perdure.hint_work();
  end if;
  if v_over is not null then
    perform perdure.end_cancelled(v_over, p_reason, p_payload, v_now);
  end if;
end
$$;

-- End runs that have no worker to clean up after, and that are locked.
create or replace function perdure.end_cancelled(p_runs bigint[], p_reason text, p_payload bytea, p_now bigint)
returns void
language plpgsql volatile
as $$
declare
  v_watched boolean;
  v_awaited boolean;
  v_billed boolean;
  v_heads bigint[];
begin
  insert into perdure.checkpoints (
    run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload
  )
  select r.id, r.fence, 0, 0, p_now, p_now, r.super_step + 1, 0, 0, 2, true, '', p_payload
  from perdure.runs r
  where r.id = any (p_runs);
  delete from perdure.waits w where w.run = any (p_runs);
  update perdure.interrupts i set state = 'withdrawn' where i.run = any (p_runs) and coalesce(i.state = 'open', false);
  with ended as (
    update perdure.runs r
    set state = 'cancelled', ready = false, ended_at = p_now, cancel = p_reason, reason = p_reason, detail = null
    where r.id = any (p_runs)
    returning r.watched, r.awaited, r.bill_sink is not null as billed
  )
  select bool_or(ended.watched), bool_or(ended.awaited), bool_or(ended.billed)
  into v_watched, v_awaited, v_billed
  from ended;

  perform from perdure.threads t
  where t.id = any (array(select r.thread from perdure.runs r where r.id = any (p_runs)))
  order by t.id
  for no key update;
  with left_by as (
    select r.thread, count(*) as count from perdure.runs r where r.id = any (p_runs) group by r.thread
  ),
  moved as (
    update perdure.threads t
    set depth = t.depth - l.count,
        head = case
          when t.head = any (p_runs) then (
            select r.id
            from perdure.runs r
            where r.thread = t.id
              and r.state in ('queued', 'held')
              and not r.ready
            order by r.ordinal
            limit 1
          )
          else t.head
        end
    from left_by l
    where t.id = l.thread
    returning t.head
  )
  select array_agg(moved.head) into v_heads from moved where moved.head is not null;
  perform perdure.take_back(p_runs);
  if v_heads is not null then
    update perdure.runs r set ready = true where r.id = any (v_heads) and not r.ready;
    if found then
      perform perdure.hint_work();
    end if;
  end if;
  if v_awaited then
    perform perdure.wake_waiters(p_runs);
  end if;
  if v_billed then
    perform perdure.bill(p_runs);
  end if;
  perform perdure.close_accounts(p_runs);
  if v_watched then
    perform pg_notify('perdure.hints', 'ended');
  end if;
end
$$;

-- Let the newest state of a thread be the one before these runs again, where it is theirs and is not to stay.
create or replace function perdure.take_back(p_runs bigint[]) returns void
language plpgsql volatile
as $$
begin
  update perdure.threads t
  set snapshot_run = r.base_run, snapshot_step = nullif(r.base_step, 0)
  from perdure.runs r
  where r.id = any (p_runs)
    and r.rollback
    and r.base_step is not null
    and t.id = r.thread
    and t.snapshot_run = r.id;
end
$$;

-- Request a run's cancellation, and that of what is below it; nothing where the run has ended or was asked before.
create or replace function perdure.cancel(p_run bigint, p_reason text, p_payload bytea) returns void
language plpgsql volatile
as $$
declare
  v_tree bigint[];
begin
  perform from perdure.runs r
  where r.id = p_run
    and (r.cancel is null or r.state = 'held')
    and r.state not in ('completed', 'failed', 'cancelled');
  if not found then
    return;
  end if;
  v_tree := perdure.lock_tree(array[p_run]);
  if p_run = any (v_tree) then
    perform perdure.request_cancel(v_tree, p_reason, p_payload);
  end if;
end
$$;

-- The unfinished runs of these threads: the heads, and those behind them.
create or replace function perdure.unfinished(p_threads bigint[]) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    select t.head from perdure.threads t where t.id = any (p_threads) and t.head is not null
    union all
    select r.id
    from perdure.runs r
    where r.thread = any (p_threads)
      and r.state in ('queued', 'held')
      and not r.ready
  );
end
$$;

-- Request the cancellation of a thread's unfinished runs, for one that is started in their place. The thread is locked.
create or replace function perdure.displace(p_thread bigint, p_rollback boolean, p_reason text, p_payload bytea)
returns void
language plpgsql volatile
as $$
declare
  v_runs bigint[] := perdure.unfinished(array[p_thread]);
  v_asked bigint[];
begin
  perform from perdure.runs r where r.id = any (v_runs) order by r.id for no key update;
  if p_rollback then
    update perdure.runs r set rollback = true where r.id = any (v_runs);
  end if;
  v_asked := array(
    select r.id from perdure.runs r where r.id = any (v_runs) and (r.cancel is null or r.state = 'held')
  );
  perform perdure.request_cancel(perdure.lock_tree(v_asked), p_reason, p_payload);
end
$$;
