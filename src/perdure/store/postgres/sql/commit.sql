-- name: wait_for_worker
-- Wait until nothing of this worker is under way, and keep it so.
select id from perdure.workers where id = :worker for update

-- name: append_one
-- Write one step, in the order of the function's arguments.
select alive, lost, done, cancelled
from perdure.append_one(
  :worker, :run, :fence, :super_step, :key, :seq, :attempt, :digest, :failed, :payload, :started_at, :ended_at
)

-- name: append
-- Write steps and nothing else, in the order of the function's arguments.
select alive, lost, done, cancelled
from perdure.append(
  :worker, :runs, :fences,
  :c_run, :c_fence, :c_super_step, :c_key, :c_kind, :c_seq, :c_attempt, :c_digest, :c_failed, :c_payload, :c_state,
  :c_started_at, :c_ended_at,
  :b_thread, :b_digest, :b_data
)

-- name: append_using
-- Write steps and what they use or reserve, in the order of the functions' arguments; they are called one after the
-- other, each with what the first has said.
select a.alive, a.lost, a.done, a.cancelled, u.short
from perdure.append(
  :worker, :runs, :fences,
  :c_run, :c_fence, :c_super_step, :c_key, :c_kind, :c_seq, :c_attempt, :c_digest, :c_failed, :c_payload, :c_state,
  :c_started_at, :c_ended_at,
  :b_thread, :b_digest, :b_data
) a
cross join lateral perdure.record_meters(
  a.alive and a.lost is null and a.done is null,
  :m_run, :m_super_step, :m_key, :m_attempt, :m_fence, :m_number, :m_name, :m_quantity, :m_attributes
) m
cross join lateral perdure.spend(
  a.alive and a.lost is null and a.done is null,
  :o_kind, :o_run, :o_fence, :o_super_step, :o_key, :o_attempt, :o_usd, :o_tokens, :o_steps, :o_us, :o_known, :o_count,
  :o_position, :u_budget
) u

-- name: commit
-- Write a batch of any kinds, in the order of the function's arguments.
select alive, lost, done, cancelled
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

-- name: commit_waits
-- Write a batch that has to do with waiting, in the order of the function's arguments.
select alive, lost, done, cancelled, bounced, why, awake
from perdure.commit_waits(
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
  :o_run, :o_super_step, :o_key, :o_kind, :o_thread, :o_delay_us, :o_due_at, :o_target, :o_labels,
  :i_id, :i_name, :i_payload, :i_schema, :i_digest, :i_on_timeout, :i_assignee,
  :x_run, :x_super_step, :x_key, :x_thread, :x_filed, :x_take, :x_expired, :x_position,
  :m_run, :m_super_step, :m_key, :m_id, :m_thread_id, :m_sender, :m_label, :m_payload, :m_position,
  :mb_message, :mb_digest, :mb_data,
  :y_run, :y_thread, :y_seq, :y_reason, :y_position,
  :w_run, :w_super_step,
  :parked, :unaware, :mailbox_max, :memory_us
)

-- name: commit_waits_more
-- The same where messages have keys of their senders'.
select alive, lost, done, cancelled, bounced, why, awake
from perdure.commit_waits(
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
  :o_run, :o_super_step, :o_key, :o_kind, :o_thread, :o_delay_us, :o_due_at, :o_target, :o_labels,
  :i_id, :i_name, :i_payload, :i_schema, :i_digest, :i_on_timeout, :i_assignee,
  :x_run, :x_super_step, :x_key, :x_thread, :x_filed, :x_take, :x_expired, :x_position,
  :m_run, :m_super_step, :m_key, :m_id, :m_thread_id, :m_sender, :m_label, :m_payload, :m_position,
  :mb_message, :mb_digest, :mb_data,
  :y_run, :y_thread, :y_seq, :y_reason, :y_position,
  :w_run, :w_super_step,
  :parked, :unaware, :mailbox_max, :memory_us,
  :m_sent_key
)
