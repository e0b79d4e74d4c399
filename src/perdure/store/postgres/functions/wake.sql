-- Whoever brings about what a run may wait for wakes the run in the same transaction. A parked one is queued; a running
-- one is told to look (it may not have parked yet, or other branches of it go on).
--
-- Locks are taken in one order everywhere, so that transactions wait for each other and never in a circle: the worker's
-- row, start keys, threads by id, runs by id, the runs that are woken or become heads, lanes of the outbox by sink and
-- partition, and last budgets by id. Threads come before runs, since whoever has brought a message, and holds the
-- mailbox's thread, looks for a run to be woken. (A circle that is left is met by repeating: `failures.REPEATABLE`.)
--
-- No wake-up is lost, since a parking and what ends the wait exclude each other: by the run's row (an answer, a
-- cancellation, another run's end), or by the row of the thread whose mailbox it is (a message, room). The one that
-- comes second looks in a snapshot that begins after it has the lock, and sees the first. The opening of a wait takes
-- the same locks, so that a running run, too, either sees what has come or is told of it.

-- Wake these runs. (`coalesce`, so that no partial index on the state fits: they are found by their ids.) A claim that
-- comes meanwhile passes over what is locked here or by the caller; so there is a WORK hint for what is queued already.
create or replace function perdure.wake(p_runs bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_running boolean;
  v_queued boolean;
begin
  perform from perdure.runs r
  where r.id = any (p_runs)
    and coalesce(r.state = 'waiting', false)
  order by r.id
  for no key update;
  if found then
    update perdure.runs r
    set state = 'queued', ready_at = perdure.now_us()
    where r.id = any (p_runs)
      and coalesce(r.state = 'waiting', false);
  end if;
  select bool_or(r.state = 'running'), bool_or(r.state = 'queued' and r.ready)
  into v_running, v_queued
  from perdure.runs r
  where r.id = any (p_runs);
  if v_running then
    perform pg_notify('perdure.hints', 'wake');
  end if;
  if v_queued then
    perform perdure.hint_work();
  end if;
end
$$;

-- Send a WORK hint if one of these runs is claimable, since a claim may have passed over it while it was locked.
create or replace function perdure.hint_passed_over(p_runs bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_claimable boolean;
begin
  select bool_or(r.state in ('queued', 'waiting') and r.ready and r.ready_at <= perdure.now_us())
  into v_claimable
  from perdure.runs r
  where r.id = any (p_runs);
  if v_claimable then
    perform perdure.hint_work();
  end if;
end
$$;

-- Wake the runs that wait for the end of these, which have ended or are held. Whoever waited before these were locked
-- is locked since; but others may have begun to in between, and may be parking.
create or replace function perdure.wake_waiters(p_over bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_runs bigint[] := array(select w.run from perdure.waits w where w.target = any (p_over) and w.kind = 3);
begin
  if v_runs <> '{}' then
    perform from perdure.runs r where r.id = any (v_runs) order by r.id for no key update;
    perform perdure.wake(v_runs);
  end if;
end
$$;

-- Wake the heads of these threads that wait for a message with these labels; the threads are locked.
create or replace function perdure.wake_receivers(p_threads bigint[], p_labels text[]) returns void
language plpgsql volatile
as $$
declare
  v_runs bigint[] := array(
    select w.run
    from unnest(p_threads, p_labels) as m (thread, label)
    cross join lateral (
      select o.run
      from perdure.waits o
      where o.run = (select t.head from perdure.threads t where t.id = m.thread)
        and o.kind = 2
        and (o.labels is null or m.label = any (o.labels))
      limit 1
    ) as w
  );
begin
  if v_runs <> '{}' then
    perform perdure.wake(v_runs);
  end if;
end
$$;

-- Wake the runs that wait for room in the mailboxes of these threads, which are locked.
create or replace function perdure.wake_senders(p_threads bigint[]) returns void
language plpgsql volatile
as $$
declare
  v_runs bigint[] := array(select w.run from perdure.waits w where w.target = any (p_threads) and w.kind = 4);
begin
  if v_runs <> '{}' then
    perform perdure.wake(v_runs);
  end if;
end
$$;
