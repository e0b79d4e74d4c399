-- name: register
-- Insert the worker's row; a repeat finds it there.
insert into perdure.workers (id, lease_until, started_at, pid, state, name, host, deployment)
select :id, n.now_us + :lease_us, n.now_us, :pid, 'alive', :name, :host, :deployment
from (select perdure.now_us() as now_us) n
on conflict (id) do nothing

-- name: renew
-- Extend the lease of a worker that is alive.
update perdure.workers set lease_until = perdure.now_us() + :lease_us where id = :id and state = 'alive' returning id

-- name: set_idle
-- Say whether the worker waits for work.
update perdure.workers set idle = :idle where id = :id and state = 'alive' and idle <> :idle

-- name: suspects
-- Alive workers whose lease has run out, and those of the given ones that are alive.
select id, id = any(:known) as known
from perdure.workers
where state = 'alive'
  and (lease_until <= perdure.now_us() or id = any(:known))
order by id

-- name: take_over
-- Declare one worker dead and take its runs.
select requeued, held from perdure.take_over(:worker, :known, :recoveries_max)

-- name: retire
-- End a worker's row and give back its runs; how many.
select perdure.retire(:worker)

-- name: give_back
-- Give back the runs that a worker holds but does not keep; how many.
select perdure.give_back(:worker, :keep, :ticket)
