-- Interrupts. All that changes one happens under its run's row.

-- Answer an open interrupt: whether this was its first answer, and the row as it is then (the columns are those of
-- `records.Interrupt`); no row where there is none of that id. One whose time has come is expired instead.
create or replace function perdure.answer(
  p_interrupt bigint, p_answer bytea, p_by text, b_digest bytea[], b_data bytea[]
) returns table (
  created boolean, id bigint, run bigint, thread bigint, thread_id text, agent text, super_step integer, key text,
  name text, state text, payload bytea, schema bytea, digest text, on_timeout text, assignee text, tenant text,
  created_at bigint, expires_at bigint, answer bytea, answered_by text, answered_at bigint
)
language plpgsql volatile
as $$
declare
  v_run bigint;
  v_thread bigint;
  v_now bigint;
  v_created boolean;
begin
  select i.run into v_run from perdure.interrupts i where i.id = p_interrupt;
  if not found then
    return;
  end if;
  select r.thread into v_thread from perdure.runs r where r.id = v_run for no key update;
  v_now := perdure.now_us();
  update perdure.interrupts i
  set state = 'answered', answer = p_answer, answered_by = p_by, answered_at = v_now
  where i.id = p_interrupt
    and coalesce(i.state = 'open', false)
    and coalesce(i.expires_at > v_now, true);
  v_created := found;
  if v_created then
    insert into perdure.blobs (thread, digest, data)
    select v_thread, b.digest, b.data
    from unnest(b_digest, b_data) as b (digest, data)
    order by b.digest
    on conflict do nothing;
    perform perdure.wake(array[w.run])
    from perdure.interrupts i
    join perdure.waits w on w.run = i.run and w.super_step = i.super_step and w.key = i.key
    where i.id = p_interrupt;
  else
    update perdure.interrupts i set state = 'expired' where i.id = p_interrupt and coalesce(i.state = 'open', false);
    perform perdure.hint_passed_over(array[v_run]);
  end if;
  return query
  select
    v_created, i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name, i.state, i.payload, i.schema,
    i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer, i.answered_by, i.answered_at
  from perdure.interrupts i
  join perdure.runs r on r.id = i.run
  join perdure.threads t on t.id = r.thread
  where i.id = p_interrupt;
end
$$;
