-- The store's clock, in microseconds since the epoch.
create or replace function perdure.now_us() returns bigint
language sql volatile
as $$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- Reserve consecutive ids; the lock makes the two moves of the sequence one.
create or replace function perdure.reserve_ids(p_count bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_first bigint;
begin
  perform pg_advisory_xact_lock(1885692005, hashtext('perdure.ids'));
  v_first := nextval('perdure.ids');
  if p_count > 1 then
    perform setval('perdure.ids', v_first + p_count - 1);
  end if;
  return v_first;
end
$$;

-- The same within a longer transaction, which gives the lock back at once: others do not wait for its end.
create or replace function perdure.next_ids(p_count bigint) returns bigint
language plpgsql volatile
as $$
declare
  v_first bigint;
begin
  perform pg_advisory_lock(1885692005, hashtext('perdure.ids'));
  v_first := nextval('perdure.ids');
  if p_count > 1 then
    perform setval('perdure.ids', v_first + p_count - 1);
  end if;
  perform pg_advisory_unlock(1885692005, hashtext('perdure.ids'));
  return v_first;
end
$$;

-- Send a WORK hint, if anybody waits for work. A notification makes every commit of the database queue for one lock,
-- so none is sent to a fleet that is busy.
create or replace function perdure.hint_work() returns void
language plpgsql volatile
as $$
begin
  if exists (select from perdure.workers w where w.state = 'alive' and w.idle) then
    perform pg_notify('perdure.hints', 'work');
  end if;
end
$$;
