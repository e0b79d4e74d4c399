-- The hot path. Every statement of a volatile function reads a snapshot of its own, and that is what makes the guard
-- sound: the worker's row is locked first, and the fences are read in a later snapshot. A single statement that locked
-- and compared would wait for the lock and then compare what it had seen before the wait.
--
-- The lock is the weakest one (`for key share`): it lets a renewal of the lease pass, which changes no key, and
-- excludes `for update`, which is what take-over, retirement and every other change of ownership take.
--
-- Every function is planned once, for indexes and nested loops (`fix_plans` in `sql/meta.sql`). Statements are
-- written so that one index fits: a row is found by its id alone and its state looked at afterwards, since a
-- partial index on the state looks cheap while it is empty.

-- Write log rows and blobs for a worker: all of them, or none where a run of the batch is no longer this worker's
-- (`lost`), or its slice has ended (`done`), or it is among those that may not go on as they would (`p_ending`) once
-- their cancellation was requested (`cancelled`, which is said of the others too). A row that exists is a unique
-- violation; the caller sifts. Before it looks, it locks the threads and runs that the caller is going to change, and
-- whoever waits for the end of those that are over.
create or replace function perdure.append(
  p_worker bigint, p_runs bigint[], p_fences bigint[],
  c_run bigint[], c_fence bigint[], c_super_step integer[], c_key text[], c_kind smallint[], c_seq integer[],
  c_attempt integer[], c_digest bigint[], c_failed boolean[], c_payload bytea[], c_state bytea[],
  c_started_at bigint[], c_ended_at bigint[],
  b_thread bigint[], b_digest bytea[], b_data bytea[],
  p_threads bigint[] default '{}', p_changing bigint[] default '{}', p_over bigint[] default '{}',
  p_ending bigint[] default '{}',
  out alive boolean, out lost bigint[], out done bigint[], out cancelled bigint[]
)
language plpgsql volatile
as $$
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  alive := found;
  if not alive then
    return;
  end if;
  if cardinality(p_threads) > 0 then
    perform from perdure.threads t where t.id = any (p_threads) order by t.id for no key update;
  end if;
  if cardinality(p_changing) > 0 then
    perform from perdure.runs r
    where r.id = any (
      p_changing || array(select w.run from perdure.waits w where w.target = any (p_over) and w.kind = 3)
    )
    order by r.id
    for no key update;
  end if;

  select
    array_agg(t.run) filter (where r.fence is distinct from t.fence or (r.state = 'running' and r.worker <> p_worker)),
    array_agg(t.run) filter (where r.fence = t.fence and r.state <> 'running'),
    array_agg(t.run) filter (where r.cancel is not null)
  into lost, done, cancelled
  from unnest(p_runs, p_fences) as t (run, fence)
  left join perdure.runs r on r.id = t.run;
  if lost is not null or done is not null or cancelled && p_ending then
    return;
  end if;

  if cardinality(b_thread) > 0 then
    insert into perdure.blobs (thread, digest, data)
    select b.thread, b.digest, b.data
    from unnest(b_thread, b_digest, b_data) as b (thread, digest, data)
    order by b.thread, b.digest
    on conflict do nothing;
  end if;

  if cardinality(c_run) > 0 then
    insert into perdure.checkpoints (
      run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload, state
    )
    select
      c.run, c.fence, p_worker, c.digest, c.started_at, c.ended_at, c.super_step, c.seq, c.attempt, c.kind, c.failed,
      c.key, c.payload, c.state
    from unnest(
      c_run, c_fence, c_super_step, c_key, c_kind, c_seq, c_attempt, c_digest, c_failed, c_payload, c_state,
      c_started_at, c_ended_at
    ) as c (
      run, fence, super_step, key, kind, seq, attempt, digest, failed, payload, state, started_at, ended_at
    );
  end if;
end
$$;

-- The same for one step that comes alone, as a step that waits for its commit does: half of `append`'s time for one row
-- goes into its arrays.
create or replace function perdure.append_one(
  p_worker bigint, p_run bigint, p_fence bigint, p_super_step integer, p_key text, p_seq integer, p_attempt integer,
  p_digest bigint, p_failed boolean, p_payload bytea, p_started_at bigint, p_ended_at bigint,
  out alive boolean, out lost bigint[], out done bigint[], out cancelled bigint[]
)
language plpgsql volatile
as $$
declare
  v_fence bigint;
  v_state text;
  v_owner bigint;
  v_cancel text;
begin
  perform from perdure.workers w where w.id = p_worker and w.state = 'alive' for key share;
  alive := found;
  if not alive then
    return;
  end if;

  select r.fence, r.state, r.worker, r.cancel
  into v_fence, v_state, v_owner, v_cancel
  from perdure.runs r
  where r.id = p_run;
  if v_cancel is not null then
    cancelled := array[p_run];
  end if;
  if v_fence is distinct from p_fence or (v_state = 'running' and v_owner <> p_worker) then
    lost := array[p_run];
  elsif v_state <> 'running' then
    done := array[p_run];
  else
    insert into perdure.checkpoints (
      run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload
    )
    values (
      p_run, p_fence, p_worker, p_digest, p_started_at, p_ended_at, p_super_step, p_seq, p_attempt, 0, p_failed, p_key,
      p_payload
    );
  end if;
end
$$;

-- Write a batch of any kinds of changes but those that have to do with waiting (`waits.sql` has these).
create or replace function perdure.commit(
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
  out alive boolean, out lost bigint[], out done bigint[], out cancelled bigint[]
)
language plpgsql volatile
as $$
declare
  v_now bigint;
  v_ending bigint[] := '{}';
  v_heads bigint[];
  v_awaited bigint[];
  v_held bigint[];
  v_taken_back bigint[];
  v_billed bigint[];
  v_seen boolean := false;
  v_watched boolean := false;
  v_claimable boolean := false;
begin
  if cardinality(e_run) > 0 then
    v_ending := array(select e.run from unnest(e_run, e_state) as e (run, state) where e.state <> 'cancelled');
  end if;
  select w.alive, w.lost, w.done, w.cancelled
  into alive, lost, done, cancelled
  from perdure.append(
    p_worker, p_runs, p_fences,
    c_run, c_fence, c_super_step, c_key, c_kind, c_seq, c_attempt, c_digest, c_failed, c_payload, c_state,
    c_started_at, c_ended_at, b_thread, b_digest, b_data,
    t_thread, n_run || e_run || q_run || h_run, e_run || h_run, v_ending
  ) as w;
  if not alive or lost is not null or done is not null or cancelled && v_ending then
    return;
  end if;

  -- RecordAttempt
  if cardinality(a_run) > 0 then
    insert into perdure.attempts as o (run, fence, started_at, ended_at, super_step, attempt, key, error)
    select a.run, a.fence, a.started_at, a.ended_at, a.super_step, a.attempt, a.key, a.error
    from unnest(a_run, a_fence, a_super_step, a_key, a_attempt, a_error, a_started_at, a_ended_at)
      as a (run, fence, super_step, key, attempt, error, started_at, ended_at)
    on conflict (run, super_step, key, attempt) do update
    set fence = excluded.fence,
        error = excluded.error,
        started_at = excluded.started_at,
        ended_at = excluded.ended_at,
        told = o.error is not null and o.fence = excluded.fence
    where excluded.error is not null or o.error is null;
  end if;

  if cardinality(n_run) + cardinality(e_run) + cardinality(q_run) + cardinality(h_run) = 0 then
    return;
  end if;
  v_now := perdure.now_us();

  -- BeginSuperStep. A run whose thread's newest state is not its own notes where that is.
  if cardinality(n_run) > 0 then
    update perdure.runs r
    set super_step = n.super_step,
        base_run = case
          when t.snapshot_run is distinct from r.id then t.snapshot_run
          else r.base_run
        end,
        base_step = case
          when t.snapshot_run is distinct from r.id then coalesce(t.snapshot_step, 0)
          else r.base_step
        end
    from unnest(n_run, n_super_step) as n (run, super_step), perdure.threads t
    where r.id = n.run
      and t.id = r.thread;
  end if;

  -- EndRun
  if cardinality(e_run) > 0 then
    with ended as (
      update perdure.runs r
      set state = e.state,
          worker = null,
          ready = false,
          ended_at = v_now,
          reason = case when e.state = 'cancelled' then r.cancel else r.reason end
      from unnest(e_run, e_state) as e (run, state)
      where r.id = e.run
      returning r.id, r.watched, r.awaited, r.rollback and r.state = 'cancelled' as taken_back,
        r.bill_sink is not null as billed
    )
    select
      coalesce(bool_or(ended.watched), false),
      array_agg(ended.id) filter (where ended.awaited),
      array_agg(ended.id) filter (where ended.taken_back),
      array_agg(ended.id) filter (where ended.billed)
    into v_watched, v_awaited, v_taken_back, v_billed
    from ended;
  end if;

  -- RequeueRun
  if cardinality(q_run) > 0 then
    update perdure.runs r
    set state = 'queued',
        worker = null,
        ready_at = case
          when q.delay_us > 0 and r.cancel is null then least(v_now + q.delay_us, r.deadline_at)
          else r.ready_at
        end
    from unnest(q_run, q_delay_us) as q (run, delay_us)
    where r.id = q.run;
    v_claimable := 0 >= any (q_delay_us) or cancelled && q_run;
    perform perdure.forget_unfinished_tries(q_run);
  end if;
  if cardinality(d_run) > 0 then
    perform perdure.drop_steps(d_run, d_key);
  end if;

  -- HoldRun
  if cardinality(h_run) > 0 then
    with held as (
      update perdure.runs r
      set state = 'held', worker = null, reason = h.reason, detail = h.detail
      from unnest(h_run, h_reason, h_detail) as h (run, reason, detail)
      where r.id = h.run
      returning r.id, r.watched, r.awaited
    )
    select coalesce(bool_or(held.watched), false), array_agg(held.id) filter (where held.awaited)
    into v_seen, v_held
    from held;
    v_watched := v_watched or v_seen;
    v_awaited := v_awaited || v_held;
  end if;

  -- Threads: the newest snapshot, and whose turn it is. The next head is looked for under the thread's lock, in a later
  -- snapshot, so it cannot be missed while it is being queued.
  if cardinality(t_thread) > 0 then
    with moved as (
      update perdure.threads t
      set depth = t.depth - x.ended,
          head = case
            when x.ended = 0 then t.head
            when t.depth > 1 then (
              select r.id
              from perdure.runs r
              where r.thread = t.id
                and r.state in ('queued', 'held')
                and not r.ready
              order by r.ordinal
              limit 1
            )
          end,
          snapshot_run = coalesce(x.snapshot_run, t.snapshot_run),
          snapshot_step = coalesce(x.snapshot_step, t.snapshot_step)
      from unnest(t_thread, t_ended, t_snapshot_run, t_snapshot_step)
        as x (thread, ended, snapshot_run, snapshot_step)
      where t.id = x.thread
      returning t.head, x.ended
    )
    select array_agg(moved.head) filter (where moved.ended = 1 and moved.head is not null)
    into v_heads
    from moved;
    if v_taken_back is not null then
      perform perdure.take_back(v_taken_back);
    end if;
    if v_heads is not null then
      update perdure.runs r set ready = true where r.id = any (v_heads) and not r.ready;
      v_claimable := v_claimable or found;
    end if;
  end if;

  if v_awaited is not null then
    perform perdure.wake_waiters(v_awaited);
  end if;
  if v_billed is not null then
    perform perdure.bill(v_billed);
  end if;
  if v_watched then
    perform pg_notify('perdure.hints', 'ended');
  end if;
  if v_claimable then
    perform perdure.hint_work();
  end if;
end
$$;

-- Delete failed step records of the runs' current super-steps, with their tries, so that those steps run again.
create or replace function perdure.drop_steps(p_run bigint[], p_key text[]) returns void
language plpgsql volatile
as $$
begin
  with dropped as (
    delete from perdure.checkpoints c
    using unnest(p_run, p_key) as d (run, key), perdure.runs r
    where r.id = d.run
      and c.run = d.run
      and c.super_step = r.super_step
      and c.key = d.key
      and c.kind = 0
      and c.failed
    returning c.run, c.super_step, c.key
  )
  delete from perdure.attempts a
  using dropped d
  where a.run = d.run
    and a.super_step = d.super_step
    and a.key = d.key;
end
$$;
