-- name: take_session_lock
-- Take the worker's lock for this session of the database, unless it is held; and say which backend did it.
select pg_try_advisory_lock(:key::bigint) as taken, pg_backend_pid() as pid

-- name: holds_session_lock
-- Whether this is still that backend, and whether it holds the lock.
select
  pg_backend_pid() = :pid::integer
  and exists (
    select
    from pg_locks l
    where l.locktype = 'advisory'
      and l.objsubid = 1
      and l.pid = :pid::integer
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and (l.classid::bigint << 32) | l.objid::bigint = :key::bigint
      and l.granted
  )

-- name: set_session
-- Say in the worker's row that its death will show.
update perdure.workers set session = true where id = :worker and not session returning id

-- name: attendance
-- Alive workers that have held a lock, the locks that are held, and whether a missing one means something: not right
-- after the server started.
select
  (select coalesce(array_agg(w.id), '{}') from perdure.workers w where w.state = 'alive' and w.session) as workers,
  (
    select coalesce(array_agg((l.classid::bigint << 32) | l.objid::bigint), '{}')
    from pg_locks l
    where l.locktype = 'advisory'
      and l.objsubid = 1
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.granted
  ) as held,
  pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => :grace_us::bigint / 1e6) as settled
