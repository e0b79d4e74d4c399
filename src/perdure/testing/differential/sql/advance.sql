-- name: advance
-- Move every time that is compared with the clock back by so many microseconds. (The number is never.)
with
  workers as (
    update perdure.workers
    set lease_until = lease_until - $1
  ),
  waits as (
    update perdure.waits
    set due_at = due_at - $1
    where due_at is not null
  ),
  interrupts as (
    update perdure.interrupts
    set expires_at = expires_at - $1
    where expires_at is not null
  ),
  messages as (
    update perdure.messages
    set taken_at = taken_at - $1
    where taken_at is not null
  ),
  deliveries as (
    update perdure.deliveries
    set due_at = due_at - $1
  )
update perdure.runs
set
  ready_at = case when ready_at = 4611686018427387904 then ready_at else ready_at - $1 end,
  deadline_at = deadline_at - $1
