-- name: wait_for_worker
-- Wait until nothing of this worker is under way, and keep it so.
select id from perdure.workers where id = :worker for update

-- name: append_one
-- Write one step, in the order of the function's arguments.
select alive, lost, done
from perdure.append_one(
  :worker, :run, :fence, :super_step, :key, :seq, :attempt, :digest, :failed, :payload, :started_at, :ended_at
)

-- name: append
-- Write steps and nothing else, in the order of the function's arguments.
select alive, lost, done
from perdure.append(
  :worker, :runs, :fences,
  :c_run, :c_fence, :c_super_step, :c_key, :c_kind, :c_seq, :c_attempt, :c_digest, :c_failed, :c_payload, :c_state,
  :c_started_at, :c_ended_at,
  :b_thread, :b_digest, :b_data
)

-- name: commit
-- Write a batch of any kinds, in the order of the function's arguments.
select alive, lost, done
from perdure.commit(
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
  :h_run, :h_reason, :h_detail
)
