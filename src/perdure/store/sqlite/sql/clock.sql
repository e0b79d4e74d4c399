-- name: clock
-- The mark of the last write.
select at, wall, ticks, counter
from perdure.clock

-- name: set_clock
-- Leave a mark.
update perdure.clock
set at = :at, wall = :wall, ticks = :ticks, counter = :counter

-- name: move_leases
-- Move the lease of every living worker on by a step of the clock.
update perdure.workers
set lease_until = lease_until + :step
where state = 'alive'
