-- name: terminate_backends
-- End those of these backends that serve a perdure: a number may have gone to another process meanwhile.
select pg_terminate_backend(pid)
from pg_stat_activity
where pid = any($1::integer[])
  and application_name = 'perdure'
