-- Interrupts. All that changes one happens under its run's row.

-- Answer an open interrupt; whether there is one of that id, and whether this was its first answer. One whose time has
-- come is expired instead.
create or replace function perdure.answer(
  p_interrupt bigint, p_answer bytea, p_by text, b_digest bytea[], b_data bytea[], out known boolean, out created boolean
)
language plpgsql volatile
as $$
declare
  v_run bigint;
  v_thread bigint;
  v_now bigint;
begin
  select i.run into v_run from perdure.interrupts i where i.id = p_interrupt;
  known := found;
  if not known then
    return;
  end if;
  select r.thread into v_thread from perdure.runs r where r.id = v_run for no key update;
  v_now := perdure.now_us();
  update perdure.interrupts i
  set state = 'answered', answer = p_answer, answered_by = p_by, answered_at = v_now
  where i.id = p_interrupt
    and coalesce(i.state = 'open', false)
    and coalesce(i.expires_at > v_now, true);
  created := found;
  if created then
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
end
$$;
