-- name: begin_own
-- Begin a user's transaction, with a mark that is gone as soon as that has ended, by whatever.
begin;
set local perdure_step.begun = 'yes'

-- name: commit_own
-- Commit a user's transaction, if it is still the one that was begun.
do $$
begin
  if pg_catalog.current_setting('perdure_step.begun', true) is distinct from 'yes' then
    raise invalid_transaction_initiation using message = 'another transaction than the one that was begun';
  end if;
end
$$;
commit

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
