-- name: advance
-- Move every time that is compared with the clock back by so many microseconds.
with workers as (
  update perdure.workers
  set lease_until = lease_until - $1
)
update perdure.runs
set ready_at = ready_at - $1
