-- name: effects_at
-- The effects at these places, as a JSON array; the columns are those of `effects.Entry`, in its order.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
select json_group_array(json_array(
  e.id, e.run, e.super_step, e.key, e.state, e.attempt, e.undo_attempt, e.worker, e.fence, e.rev, e.intended_at,
  e.settled_at, e.note, e.said_by
))
from mine m
join perdure.effects e on e.run = m.run and e.super_step = m.super_step and e.key = m.key

-- name: effects_by_id
-- These effects, as a JSON array of the same.
select json_group_array(json_array(
  e.id, e.run, e.super_step, e.key, e.state, e.attempt, e.undo_attempt, e.worker, e.fence, e.rev, e.intended_at,
  e.settled_at, e.note, e.said_by
))
from perdure.effects e
where e.id = any(:ids)

-- name: written_of_effects
-- Which of these were written of effects before: effect, fence, state, attempt and note, as a JSON array.
select json_group_array(json_array(v.effect, v.fence, v.state, v.attempt, v.note))
from perdure.effect_events v
where v.effect = any(:ids)
  and v.fence = any(:fences)

-- name: insert_effects
-- Put these effects into the ledger.
insert into perdure.effects (
  id, run, super_step, key, name, code, idempotency_key, policy, undoable, digest, arguments, state, attempt,
  undo_attempt, worker, fence, rev, intended_at, settled_at, outcome, note, said_by
)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: move_effects
-- Set what is known of these effects; one that brings no outcome keeps the one it has.
with moves (
  id, state, attempt, undo_attempt, worker, fence, rev, intended_at, settled_at, outcome, note, said_by
) as (
  values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
)
update perdure.effects
set
  state = m.state,
  attempt = m.attempt,
  undo_attempt = m.undo_attempt,
  worker = m.worker,
  fence = m.fence,
  rev = m.rev,
  intended_at = m.intended_at,
  settled_at = m.settled_at,
  outcome = ifnull(m.outcome, effects.outcome),
  note = m.note,
  said_by = m.said_by
from moves m
where effects.id = m.id

-- name: insert_effect_events
-- Say what was written of effects.
insert into perdure.effect_events (effect, rev, at, state, attempt, worker, fence, said_by, note)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: begin_undo
-- Decide how a run will end once its effects have been undone; the first decision stands.
update perdure.runs
set undo_outcome = :outcome, undo_payload = :payload
where id = :run
  and undo_outcome is null

-- name: begin_undo_by_hand
-- Decide that an ended run is to end as it did, once what is left of its effects has been undone.
update perdure.runs
set
  undo_outcome = runs.state,
  undo_payload = (
    select c.payload
    from perdure.checkpoints c
    where c.run = runs.id and c.kind = 2 and c.key = ''
    order by c.super_step desc
    limit 1
  )
where id = :run

-- name: begin_undo_again
-- Try those undos of a run from the beginning that have failed.
update perdure.effects
set undo_attempt = 0
where run = :run and state = 'undo_failed'

-- name: has_effects_to_undo
-- Whether a run has effects that are not undone yet, and can be.
select exists (
  select 1
  from perdure.effects
  where run = :run
    and undoable
    and state in ('done', 'undoing', 'undo_failed')
)

-- name: get_effects
-- These effects, by id.
select l.*
from perdure.ledger l
where l.id = any(:ids)
order by l.id

-- name: list_open_effects
-- A page of effects that are in flight, unknown, or whose undo is not over, oldest first.
select l.*
from perdure.ledger l
where l.stored in ('intended', 'unknown', 'undoing', 'undo_failed')
  and l.id > :after
  and (:state is null or l.state = :state)
  and (:name is null or l.name = :name)
  and (:undoable is null or l.undoable = :undoable)
  and (:agent is null or l.agent = :agent)
  and (:tenant is null or l.tenant = :tenant)
order by l.id
limit :limit

-- name: list_effects
-- A page of effects in any state, oldest first.
select l.*
from perdure.ledger l
where l.id > :after
  and (:state is null or l.state = :state)
  and (:name is null or l.name = :name)
  and (:undoable is null or l.undoable = :undoable)
  and (:agent is null or l.agent = :agent)
  and (:tenant is null or l.tenant = :tenant)
order by l.id
limit :limit

-- name: list_run_effects
-- The same for one run or one thread, along their own indexes.
select l.*
from (
  select cast(:run as integer) as id
  where :run is not null
  union all
  select o.id
  from perdure.threads h
  join perdure.runs o on o.thread = h.id
  where :run is null and h.thread_id = :thread_id
) mine
join perdure.ledger l on l.run = mine.id
where l.id > :after
  and (:thread_id is null or l.thread_id = :thread_id)
  and (:state is null or l.state = :state)
  and (:name is null or l.name = :name)
  and (:undoable is null or l.undoable = :undoable)
  and (:agent is null or l.agent = :agent)
  and (:tenant is null or l.tenant = :tenant)
order by l.id
limit :limit

-- name: claimed_effects
-- A page of the effects of these runs' current super-steps, by run and key, from after that pair.
select l.*
from perdure.runs c
join perdure.ledger l on l.run = c.id and l.super_step = c.super_step
where c.id = any(:runs)
  and (l.run, l.key) > (:after_run, :after_key)
order by l.run, l.key
limit :limit

-- name: claimed_undoings
-- How those of these runs will end whose effects are being undone, as a JSON array.
select json_group_array(json_array(id, undo_outcome, hex(undo_payload)))
from perdure.runs
where id = any(:runs)
  and undo_outcome is not null

-- name: effect_events
-- What was written of an effect, in order; the columns are those of `effects.EffectEvent`, in its order.
select effect, rev, at, state, attempt, worker, fence, said_by, note
from perdure.effect_events
where effect = :effect
order by rev
