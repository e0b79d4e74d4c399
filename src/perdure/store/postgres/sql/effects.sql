-- name: commit_effects
-- Write a batch with effects, in the order of the function's arguments.
select alive, lost, done, cancelled, unfit, keys, states, attempts
from perdure.commit_effects(
  :worker, :runs, :fences,
  :c_run, :c_fence, :c_super_step, :c_key, :c_kind, :c_seq, :c_attempt, :c_digest, :c_failed, :c_payload, :c_state,
  :c_started_at, :c_ended_at,
  :b_thread, :b_digest, :b_data,
  :a_run, :a_fence, :a_super_step, :a_key, :a_attempt, :a_error, :a_started_at, :a_ended_at,
  :n_run, :n_super_step,
  :e_run, :e_state,
  :t_thread, :t_ended, :t_snapshot_run, :t_snapshot_step,
  :q_run, :q_delay_us,
  :d_run, :d_key,
  :h_run, :h_reason, :h_detail,
  :threads,
  :i_run, :i_fence, :i_super_step, :i_key, :i_effect, :i_name, :i_code, :i_idempotency_key, :i_policy, :i_undoable,
  :i_attempt, :i_digest, :i_arguments, :i_undo, :i_position,
  :s_run, :s_fence, :s_effect, :s_attempt, :s_state, :s_outcome, :s_note, :s_by, :s_super_step, :s_key, :s_position,
  :u_run, :u_outcome, :u_payload,
  :unaware
)

-- name: resolve
-- Set what a person has found out about an effect.
select perdure.resolve(:effect, :state, :outcome, :by, :note, :b_digest, :b_data)

-- name: get_effects
-- These effects, by id; the columns are those of `effects.Effect`.
select
  l.id, l.run, l.thread, l.thread_id, l.agent, l.tenant, l.super_step, l.key, l.name, l.code, l.idempotency_key,
  l.policy, l.undoable, l.state, l.attempt, l.undo_attempt, l.digest, l.arguments, l.outcome, l.note, l.by, l.worker,
  l.fence, l.rev, l.intended_at, l.settled_at, l.lease_until
from perdure.ledger l
where l.id = any(:effects)
order by l.id

-- name: claimed_effects
-- The effects of these super-steps; the columns are those of `effects.Effect`.
select
  l.id, l.run, l.thread, l.thread_id, l.agent, l.tenant, l.super_step, l.key, l.name, l.code, l.idempotency_key,
  l.policy, l.undoable, l.state, l.attempt, l.undo_attempt, l.digest, l.arguments, l.outcome, l.note, l.by, l.worker,
  l.fence, l.rev, l.intended_at, l.settled_at, l.lease_until
from unnest(:runs::bigint[], :super_steps::integer[]) as s (run, super_step)
join perdure.ledger l on l.run = s.run and l.super_step = s.super_step
order by l.run, l.key

-- name: effects
-- A page of effects, oldest id first. (What is null is left out of the plan, which is made for each call: so the index
-- of the open ones serves those who ask for these.)
select
  l.id, l.run, l.thread, l.thread_id, l.agent, l.tenant, l.super_step, l.key, l.name, l.code, l.idempotency_key,
  l.policy, l.undoable, l.state, l.attempt, l.undo_attempt, l.digest, l.arguments, l.outcome, l.note, l.by, l.worker,
  l.fence, l.rev, l.intended_at, l.settled_at, l.lease_until
from perdure.ledger l
where l.id > :after
  and (
    :state::text is null
    or :state not in ('intended', 'unknown', 'undoing', 'undo_failed')
    or l.stored in ('intended', 'unknown', 'undoing', 'undo_failed')
  )
  and (:state::text is null or l.state = :state)
  and (:agent::text is null or l.agent = :agent)
  and (:name::text is null or l.name = :name)
  and (:tenant::text is null or l.tenant = :tenant)
  and (:undoable::boolean is null or l.undoable = :undoable)
order by l.id
limit :limit

-- name: effects_of
-- The same for one run or one thread, along their own indexes.
select
  l.id, l.run, l.thread, l.thread_id, l.agent, l.tenant, l.super_step, l.key, l.name, l.code, l.idempotency_key,
  l.policy, l.undoable, l.state, l.attempt, l.undo_attempt, l.digest, l.arguments, l.outcome, l.note, l.by, l.worker,
  l.fence, l.rev, l.intended_at, l.settled_at, l.lease_until
from (
  select :run::bigint as id
  where :run is not null
  union all
  select o.id
  from perdure.threads h
  join perdure.runs o on o.thread = h.id
  where :run is null
    and h.thread_id = :thread_id
) mine
join perdure.ledger l on l.run = mine.id
where l.id > :after
  and (:thread_id::text is null or l.thread_id = :thread_id)
  and (:state::text is null or l.state = :state)
  and (:agent::text is null or l.agent = :agent)
  and (:name::text is null or l.name = :name)
  and (:tenant::text is null or l.tenant = :tenant)
  and (:undoable::boolean is null or l.undoable = :undoable)
order by l.id
limit :limit

-- name: effect_events
-- What was written of an effect, in order; the columns are those of `effects.EffectEvent`.
select effect, rev, at, state, attempt, worker, fence, by, note
from perdure.effect_events
where effect = :effect
order by rev
