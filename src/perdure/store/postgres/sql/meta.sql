-- name: is_schema_there
-- Whether there is a schema of that name, with tables in it or without.
select exists (
  select
  from pg_namespace
  where nspname = :schema
)

-- name: has_schema
-- Whether perdure's tables are there. (Not to_regclass: that may remember, from before a wait, that it was not.)
select exists (
  select
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = :schema
    and c.relname = 'meta'
)

-- name: get_version
-- The schema's version.
select version from perdure.meta

-- name: set_version
-- Note the schema's version.
insert into perdure.meta (version)
values (:version)
on conflict (only_row) do update
set version = excluded.version

-- name: now_us
-- The store's clock.
select perdure.now_us()

-- name: reserve_ids
-- Reserve consecutive ids; the first.
select perdure.reserve_ids(:count)

-- name: settings
-- What the doctor looks at.
select
  current_setting('server_version') as server,
  current_setting('fsync') as fsync,
  current_setting('full_page_writes') as full_page_writes,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('default_transaction_isolation') as isolation,
  current_setting('max_connections')::integer as connections_max,
  (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as connections

-- name: write_nothing
-- A transaction that must reach the disk and changes nothing.
update perdure.meta set version = version

-- name: fix_plans
-- Have all functions plan once, as nested loops over indexes: what was planned on empty tables, without statistics,
-- stays right when they are full, and no backlog of statistics can change it.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid
    from pg_proc p
    join pg_language l on l.oid = p.prolang
    where l.lanname = 'plpgsql'
      and p.pronamespace = (select c.relnamespace from pg_class c where c.oid = 'perdure.meta'::regclass)
  loop
    execute format(
      'alter function %s'
      ' set plan_cache_mode = force_generic_plan'
      ' set enable_seqscan = off'
      ' set enable_bitmapscan = off'
      ' set enable_hashjoin = off'
      ' set enable_mergejoin = off'
      ' set enable_material = off'
      ' set jit = off',
      v_function
    );
  end loop;
end
$$
