-- Send a failed or cancelled run on, at its current super-step. The thread is locked first, as a start does: the
-- run takes its old place among what is queued there. It stays as it is where going on from the state at its own
-- boundary would undo the state of later runs: of those that have ended, and of a head that has begun and would go
-- before it. With `p_undo` it goes on only to undo what effects are left, and no state with them; without, it stays as
-- it is once these have begun to be undone.
create or replace function perdure.retry(p_run bigint, p_drop_keys text[], p_undo boolean default false) returns void
language plpgsql volatile
as $$
declare
  v_thread bigint;
  v_state text;
  v_undoing boolean;
  v_ordinal bigint;
  v_head bigint;
  v_snapshot_run bigint;
  v_super_step integer;
  v_has_state boolean;
  v_goes_first boolean;
begin
  select r.thread into v_thread from perdure.runs r where r.id = p_run;
  select t.head, t.snapshot_run
  into v_head, v_snapshot_run
  from perdure.threads t
  where t.id = v_thread
  for no key update;
  select r.state, r.undo_outcome is not null, r.ordinal, r.super_step
  into v_state, v_undoing, v_ordinal, v_super_step
  from perdure.runs r
  where r.id = p_run
  for no key update;
  if not found or v_state not in ('failed', 'cancelled') or v_undoing and not p_undo then
    return;
  end if;
  if p_undo and perdure.with_undoable(array[p_run], array['done', 'undoing', 'undo_failed']) = '{}' then
    return;
  end if;

  -- A head that nobody has begun gives way to the older run; a claim that comes first keeps it. Locked only then: an
  -- end of the head's run holds its row and waits for the thread's.
  v_goes_first := v_head is null;
  if not v_goes_first then
    perform from perdure.runs r
    where r.id = v_head
      and r.attempt = 0
      and r.state <> 'held'
      and r.ordinal > v_ordinal
    for no key update;
    v_goes_first := found;
  end if;

  select c.state is not null
  into v_has_state
  from perdure.checkpoints c
  where c.run = p_run
    and c.super_step = v_super_step
    and c.key = '';
  if not p_undo and v_super_step > 1 and v_has_state
    and (v_snapshot_run is distinct from p_run or not v_goes_first)
  then
    if v_head is not null then
      perform perdure.hint_work(); -- a claim may just have passed over the head
    end if;
    return;
  end if;

  update perdure.runs r
  set state = 'queued', strikes = 0, ready = false, ready_at = perdure.now_us(), ended_at = null, reason = null,
      detail = null, cancel = case when p_undo then r.cancel end, rollback = false, deadline_at = null
  where r.id = p_run;
  if p_undo then
    perform perdure.undo_again(p_run, v_state);
  end if;
  update perdure.threads t set depth = t.depth + 1 where t.id = v_thread;
  delete from perdure.checkpoints c where c.run = p_run and c.key = '' and c.kind = 2;
  perform perdure.drop_steps(array_fill(p_run, array[cardinality(p_drop_keys)]), p_drop_keys);
  perform perdure.forget_unfinished_tries(array[p_run]);

  if v_goes_first then
    update perdure.runs r set ready = false where r.id = v_head;
    update perdure.threads t set head = p_run where t.id = v_thread;
    update perdure.runs r set ready = true where r.id = p_run;
    perform perdure.hint_work();
  end if;
end
$$;

-- Let a run that has ended like this end in the same way again, once what is left has been undone. What could not be
-- undone is tried from the beginning.
create or replace function perdure.undo_again(p_run bigint, p_outcome text) returns void
language plpgsql volatile
as $$
begin
  update perdure.runs r
  set undo_outcome = p_outcome, undo_payload = c.payload
  from perdure.checkpoints c
  where r.id = p_run
    and c.run = r.id
    and c.key = ''
    and c.kind = 2;
  update perdure.effects e
  set undo_attempt = 0
  where e.run = p_run
    and coalesce(e.state = 'undo_failed', false);
end
$$;

-- Forget the tries of the run's super-step of which nobody knows how they ended.
create or replace function perdure.forget_unfinished_tries(p_runs bigint[]) returns void
language plpgsql volatile
as $$
begin
  delete from perdure.attempts a
  using perdure.runs r
  where r.id = any (p_runs)
    and a.run = r.id
    and a.super_step = r.super_step
    and a.error is null;
end
$$;

-- Send a held run on.
create or replace function perdure.release(p_run bigint) returns void
language plpgsql volatile
as $$
declare
  v_state text;
begin
  select r.state into v_state from perdure.runs r where r.id = p_run for no key update;
  if v_state = 'held' then
    update perdure.runs r
    set state = 'queued', strikes = 0, ready_at = perdure.now_us(), reason = null, detail = null
    where r.id = p_run;
    perform perdure.forget_unfinished_tries(array[p_run]);
    perform perdure.hint_work();
  end if;
end
$$;

-- Ask for an ENDED hint for these runs, in the order in which a commit locks them. A claim that comes meanwhile passes
-- over what is locked here and finds nothing else; so there is a WORK hint for what it may have missed.
create or replace function perdure.watch(p_runs bigint[]) returns void
language plpgsql volatile
as $$
begin
  perform from perdure.runs r
  where r.id = any (p_runs)
    and not r.watched
  order by r.id
  for no key update;
  update perdure.runs r
  set watched = true
  where r.id = any (p_runs)
    and not r.watched;
  if found then
    perform perdure.hint_passed_over(p_runs);
  end if;
end
$$;
