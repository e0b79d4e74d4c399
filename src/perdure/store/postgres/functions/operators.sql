-- Send a failed or cancelled run on, at its current super-step. The thread is locked first, as a start does: the
-- run takes its old place among what is queued there.
create or replace function perdure.retry(p_run bigint, p_drop_keys text[]) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_thread bigint;
begin
  select t.id
  into v_thread
  from perdure.threads t
  where t.id = (select r.thread from perdure.runs r where r.id = p_run)
  for no key update;
  update perdure.runs r
  set state = 'queued', strikes = 0, ready = false, ready_at = perdure.now_us(), ended_at = null, reason = null,
      detail = null
  where r.id = p_run
    and r.state in ('failed', 'cancelled');
  if not found then
    return;
  end if;
  update perdure.threads t set depth = t.depth + 1 where t.id = v_thread;

  delete from perdure.checkpoints c where c.run = p_run and c.key = '' and c.kind = 2;
  perform perdure.drop_steps(array_fill(p_run, array[cardinality(p_drop_keys)]), p_drop_keys);

  -- A head that nobody has begun gives way to the older run; a claim that comes first keeps it.
  update perdure.runs h
  set ready = false
  from perdure.threads t, perdure.runs r
  where t.id = v_thread
    and r.id = p_run
    and h.id = t.head
    and h.state = 'queued'
    and h.attempt = 0
    and h.ordinal > r.ordinal;
  if found or exists (select from perdure.threads t where t.id = v_thread and t.head is null) then
    update perdure.threads t set head = p_run where t.id = v_thread;
    update perdure.runs r set ready = true where r.id = p_run;
    perform perdure.hint_work();
  end if;
end
$$;

-- Send a held run on.
create or replace function perdure.release(p_run bigint) returns void
language plpgsql volatile
as $$
begin
  update perdure.runs r
  set state = 'queued', strikes = 0, ready_at = perdure.now_us(), reason = null, detail = null
  where r.id = p_run
    and r.state = 'held';
  if found then
    perform perdure.hint_work();
  end if;
end
$$;

-- Ask for an ENDED hint for these runs, in the order in which a commit locks them.
create or replace function perdure.watch(p_runs bigint[]) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  perform from perdure.runs r
  where r.id = any (p_runs)
    and not r.watched
  order by r.id
  for no key update;
  update perdure.runs r set watched = true where r.id = any (p_runs) and not r.watched;
end
$$;
