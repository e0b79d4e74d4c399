-- The ledger of effects. A row is written before the act and after it, under its run's row and with an event beside it.
-- So a batch with effects takes its locks first, in the order that `commit` keeps too (`wake.sql` has it), then sees
-- whether all of it may be written, and only then writes what `commit` writes, and its effects.

-- The ledger as it is read: an intent is unknown once the claim that it was written under is over. Until `lease_until`
-- a worker that was taken over early may still dispatch what it had intended. (`stored` is what the index knows.)
create or replace view perdure.ledger as
select
  e.id, e.run, r.thread, t.thread_id, r.agent, r.tenant, e.super_step, e.key, e.name, e.code, e.idempotency_key,
  e.policy, e.undoable,
  case
    when e.state = 'intended' and not (r.state = 'running' and r.fence = e.fence) then 'unknown'
    else e.state
  end as state,
  e.attempt, e.undo_attempt, e.digest, e.arguments, e.outcome, e.note, e.by, e.worker, e.fence, e.rev, e.intended_at,
  e.settled_at, coalesce(w.lease_until, 0) as lease_until, e.state as stored
from perdure.effects e
join perdure.runs r on r.id = e.run
join perdure.threads t on t.id = r.thread
left join perdure.workers w on w.id = e.worker;

-- Write a batch of any kinds of changes but those that have to do with waiting, with at most one change of each effect.
-- Beyond what `commit` says, `cancelled` forbids intents that do not know of it (`p_unaware`), and `unfit` are the
-- positions in the batch of changes that the rows of their effects do not allow, with the keys, states and attempts of
-- these rows (then nothing was written). `p_threads` are threads that the same transaction will change.
create or replace function perdure.commit_effects(
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
  p_threads bigint[],
  i_run bigint[], i_fence bigint[], i_super_step integer[], i_key text[], i_effect bigint[], i_name text[],
  i_code text[], i_idempotency_key text[], i_policy text[], i_undoable boolean[], i_attempt integer[],
  i_digest bigint[], i_arguments bytea[], i_undo boolean[], i_position integer[],
  s_run bigint[], s_fence bigint[], s_effect bigint[], s_attempt integer[], s_state text[], s_outcome bytea[],
  s_note text[], s_by text[], s_super_step integer[], s_key text[], s_position integer[],
  u_run bigint[], u_outcome text[], u_payload bytea[],
  p_unaware bigint[],
  out alive boolean, out lost bigint[], out done bigint[], out cancelled bigint[],
  out unfit integer[], out keys text[], out states text[], out attempts integer[]
)
language plpgsql volatile
as $$
declare
  v_own bigint[];
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  alive := found;
  if not alive then
    return;
  end if;
  perform from perdure.threads t where t.id = any (t_thread || p_threads) order by t.id for no key update;
  perform from perdure.runs r
  where r.id = any (
    n_run || e_run || q_run || h_run || i_run || s_run || u_run
    || array(select w.run from perdure.waits w where w.target = any (e_run || h_run) and w.kind = 3)
  )
  order by r.id
  for no key update;

  select array_agg(o.run), array_agg(o.run) filter (where o.cancelled)
  into v_own, cancelled
  from (
    select t.run, bool_or(r.cancel is not null) as cancelled
    from unnest(p_runs, p_fences) as t (run, fence)
    join perdure.runs r on r.id = t.run
    group by t.run
    having bool_and(r.fence = t.fence and r.state = 'running' and coalesce(r.worker = p_worker, false))
  ) as o;
  if cancelled && p_unaware then
    return;
  end if;
  select array_agg(u.position), array_agg(u.key), array_agg(u.state), array_agg(u.attempt)
  into unfit, keys, states, attempts
  from perdure.unfit_effects(
    v_own, i_run, i_fence, i_super_step, i_key, i_effect, i_attempt, i_undo, i_position,
    s_run, s_fence, s_effect, s_attempt, s_state, s_note, s_super_step, s_key, s_position
  ) as u;
  if unfit is not null then
    return;
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

  if cardinality(s_run) > 0 then
    perform perdure.settle_effects(p_worker, s_fence, s_effect, s_attempt, s_state, s_outcome, s_note, s_by);
  end if;
  if cardinality(i_run) > 0 then
    perform perdure.intend_effects(
      p_worker, i_run, i_fence, i_super_step, i_key, i_effect, i_name, i_code, i_idempotency_key, i_policy, i_undoable,
      i_attempt, i_digest, i_arguments, i_undo
    );
  end if;

  -- BeginUndo. The first decision stands.
  if cardinality(u_run) > 0 then
    update perdure.runs r
    set undo_outcome = u.outcome, undo_payload = u.payload
    from unnest(u_run, u_outcome, u_payload) as u (run, outcome, payload)
    where r.id = u.run
      and r.undo_outcome is null;
  end if;
end
$$;

-- The positions of intents and outcomes that the rows of their effects do not allow, and what those say: of these runs
-- of the batch, which are the worker's, and only what has not been written before. (`effects.py` in the core has the
-- moves.)
create or replace function perdure.unfit_effects(
  p_own bigint[],
  i_run bigint[], i_fence bigint[], i_super_step integer[], i_key text[], i_effect bigint[], i_attempt integer[],
  i_undo boolean[], i_position integer[],
  s_run bigint[], s_fence bigint[], s_effect bigint[], s_attempt integer[], s_state text[], s_note text[],
  s_super_step integer[], s_key text[], s_position integer[]
) returns table ("position" integer, key text, state text, attempt integer)
language plpgsql volatile
as $$
begin
  return query
  select i.position, i.key, e.state, e.attempt
  from unnest(i_run, i_fence, i_super_step, i_key, i_effect, i_attempt, i_undo, i_position)
    as i (run, fence, super_step, key, effect, attempt, undo, position)
  left join perdure.effects e on e.run = i.run and e.super_step = i.super_step and e.key = i.key
  where i.run = any (p_own)
    and case
      when e.id is null then i.undo or exists (select from perdure.effects o where o.id = i.effect offset 0)
      when i.undo then
        e.state not in ('done', 'undoing', 'undo_failed')
        and not (e.fence = i.fence and e.undo_attempt >= i.attempt)
      else
        e.state not in ('intended', 'unknown', 'absent', 'failed')
        and not (e.fence = i.fence and e.attempt >= i.attempt)
    end;

  return query
  select
    s.position, e.key, e.state,
    case when s.state in ('undone', 'undo_failed') then e.undo_attempt else e.attempt end
  from unnest(s_run, s_fence, s_effect, s_attempt, s_state, s_note, s_super_step, s_key, s_position)
    as s (run, fence, effect, attempt, state, note, super_step, key, position)
  left join perdure.effects e on e.id = s.effect and e.run = s.run
  where s.run = any (p_own)
    and perdure.says_news(e.id, s.fence, s.attempt, s.state, s.note) is null
    and not exists (
      select from perdure.checkpoints c where c.run = s.run and c.super_step = s.super_step and c.key = s.key offset 0
    );
end
$$;

-- Whether this outcome changes the row of its effect; null where the row does not allow it. False is said of one that
-- this fence has written before, whatever has come of it since: that is a batch sent again.
create or replace function perdure.says_news(
  p_effect bigint, p_fence bigint, p_attempt integer, p_state text, p_note text
) returns boolean
language plpgsql volatile
as $$
declare
  v_fits boolean;
begin
  perform
  from perdure.effect_events v
  where v.effect = p_effect
    and v.fence = p_fence
    and v.attempt = p_attempt
    and v.state = p_state
    and v.note is not distinct from p_note;
  if found then
    return false;
  end if;
  select case
    when p_state in ('undone', 'undo_failed') then e.state = 'undoing' and e.undo_attempt = p_attempt
    when p_state in ('done', 'failed', 'absent', 'unknown') then
      e.state in ('intended', 'unknown') and e.attempt = p_attempt
  end
  into v_fits
  from perdure.effects e
  where e.id = p_effect;
  return case when v_fits then true end;
end
$$;

-- IntendEffect. Of a row that is there, this fence may have written this attempt, or a later one: that stays.
create or replace function perdure.intend_effects(
  p_worker bigint, i_run bigint[], i_fence bigint[], i_super_step integer[], i_key text[], i_effect bigint[],
  i_name text[], i_code text[], i_idempotency_key text[], i_policy text[], i_undoable boolean[], i_attempt integer[],
  i_digest bigint[], i_arguments bytea[], i_undo boolean[]
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
begin
  with written as (
    insert into perdure.effects as e (
      id, run, fence, worker, intended_at, digest, super_step, attempt, undoable, state, policy, key, name, code,
      idempotency_key, arguments
    )
    select
      i.effect, i.run, i.fence, p_worker, v_now, i.digest, i.super_step, i.attempt, i.undoable,
      case when i.undo then 'undoing' else 'intended' end, i.policy, i.key, i.name, i.code, i.idempotency_key,
      i.arguments
    from unnest(
      i_run, i_fence, i_super_step, i_key, i_effect, i_name, i_code, i_idempotency_key, i_policy, i_undoable,
      i_attempt, i_digest, i_arguments, i_undo
    ) as i (
      run, fence, super_step, key, effect, name, code, idempotency_key, policy, undoable, attempt, digest, arguments,
      undo
    )
    on conflict (run, super_step, key) do update
    set state = excluded.state,
        fence = excluded.fence,
        worker = excluded.worker,
        intended_at = excluded.intended_at,
        attempt = case when excluded.state = 'intended' then excluded.attempt else e.attempt end,
        undo_attempt = case when excluded.state = 'undoing' then excluded.attempt else e.undo_attempt end,
        rev = e.rev + 1
    where e.fence <> excluded.fence
      or excluded.attempt > case when excluded.state = 'intended' then e.attempt else e.undo_attempt end
    returning e.id, e.rev, e.state, case when e.state = 'intended' then e.attempt else e.undo_attempt end as attempt,
      e.fence
  )
  insert into perdure.effect_events (effect, at, worker, fence, rev, attempt, state)
  select w.id, v_now, p_worker, w.fence, w.rev, w.attempt, w.state
  from written w;
end
$$;

-- SettleEffect. What came of an undo is no outcome of the effect, which keeps its own.
create or replace function perdure.settle_effects(
  p_worker bigint, s_fence bigint[], s_effect bigint[], s_attempt integer[], s_state text[], s_outcome bytea[],
  s_note text[], s_by text[]
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint := perdure.now_us();
begin
  with written as (
    update perdure.effects e
    set state = s.state,
        outcome = case
          when s.state in ('undone', 'undo_failed') then e.outcome
          else coalesce(s.outcome, e.outcome)
        end,
        note = s.note,
        by = s.by,
        settled_at = v_now,
        rev = e.rev + 1
    from unnest(s_fence, s_effect, s_attempt, s_state, s_outcome, s_note, s_by)
      as s (fence, effect, attempt, state, outcome, note, by)
    where e.id = s.effect
      and perdure.says_news(s.effect, s.fence, s.attempt, s.state, s.note)
    returning e.id, e.rev, e.state, e.note, e.by, s.attempt, s.fence
  )
  insert into perdure.effect_events (effect, at, worker, fence, rev, attempt, state, note, by)
  select w.id, v_now, p_worker, w.fence, w.rev, w.attempt, w.state, w.note, w.by
  from written w;
end
$$;

-- Set what a person has found out about an effect whose run is held or over. Whoever sends the run on has its row, as
-- this has: so either the run goes on from what was found out, or it is too late to say so.
create or replace function perdure.resolve(
  p_effect bigint, p_state text, p_outcome bytea, p_by text, p_note text, b_digest bytea[], b_data bytea[]
) returns void
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_run bigint;
  v_thread bigint;
begin
  select e.run into v_run from perdure.effects e where e.id = p_effect;
  if not found then
    return;
  end if;
  select r.thread into v_thread from perdure.runs r where r.id = v_run for no key update;
  v_now := perdure.now_us();
  with written as (
    update perdure.effects e
    set state = p_state,
        outcome = case when p_state = 'undone' then e.outcome else coalesce(p_outcome, e.outcome) end,
        note = p_note,
        by = p_by,
        settled_at = v_now,
        rev = e.rev + 1
    where e.id = p_effect
      and exists (
        select
        from perdure.runs r
        where r.id = v_run
          and r.state in ('held', 'completed', 'failed', 'cancelled')
        offset 0
      )
      and case
        when p_state in ('done', 'failed', 'absent') then e.state in ('intended', 'unknown')
        when p_state = 'undone' then e.state = 'undo_failed'
        else false
      end
    returning e.id, e.rev, case when p_state = 'undone' then e.undo_attempt else e.attempt end as attempt
  )
  insert into perdure.effect_events (effect, at, rev, attempt, state, note, by)
  select w.id, v_now, w.rev, w.attempt, p_state, p_note, p_by
  from written w;
  if found then
    insert into perdure.blobs (thread, digest, data)
    select v_thread, b.digest, b.data
    from unnest(b_digest, b_data) as b (digest, data)
    order by b.digest
    on conflict do nothing;
  else
    perform perdure.hint_passed_over(array[v_run]);
  end if;
end
$$;

-- Those of these runs that have an effect in one of these states that can be undone.
create or replace function perdure.with_undoable(p_runs bigint[], p_states text[]) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    select r.id
    from perdure.runs r
    where r.id = any (p_runs)
      and exists (select from perdure.effects e where e.run = r.id and e.undoable and e.state = any (p_states) offset 0)
  );
end
$$;
