-- name: begin_own
-- Begin a user's transaction, with a mark that is gone as soon as that has ended, by whatever.
begin;
set local perdure_step.begun = 'yes'

-- name: take_over_own
-- Take a user's transaction over from its function, if it is still the one that was begun: what is deferred in it is
-- checked now, with the rights and settings that it was written with; then none of these stands in the way of the
-- record.
set local statement_timeout = default;
do $$
begin
  if pg_catalog.current_setting('perdure_step.begun', true) is distinct from 'yes' then
    raise invalid_transaction_initiation using message = 'another transaction than the one that was begun';
  end if;
end
$$;
set constraints all immediate;
set session authorization default;
reset role;
set local lock_timeout = default;
set local idle_in_transaction_session_timeout = default;
do $$
begin
  if pg_catalog.current_setting('transaction_timeout', true) is not null then -- from Postgres 17 on
    set local transaction_timeout = default;
  end if;
end
$$

-- name: commit_own
-- Commit a user's transaction.
commit

-- name: takes_writes
-- Whether the database takes writes: it is no standby, and nobody has told it to take none.
select pg_catalog.current_setting('transaction_read_only') = 'off'

-- name: undo_own
-- Roll a user's transaction back.
rollback

-- name: forget_own
-- Forget what a session was told to keep beyond its transaction. (What the driver has prepared stays: that is not told
-- in SQL.)
set session authorization default;
reset role;
reset all;
close all;
unlisten *;
select pg_advisory_unlock_all();
discard sequences;
discard temp;
do $$
declare
  v_name text;
begin
  for v_name in select s.name from pg_prepared_statements s where s.from_sql loop
    execute format('deallocate %I', v_name);
  end loop;
end
$$
