-- name: delete_end
-- Delete the run's `ENDED` checkpoint.
delete from perdure.checkpoints
where run = :run
  and key = ''
  and kind = 2

-- name: requeue_by_hand
-- Send a run on by a person's word; one that had ended has no deadline any more, and is not to be cancelled, unless it
-- goes on only to undo what it has done.
update perdure.runs
set
  state = 'queued',
  ready = :ready,
  ready_at = :now,
  strikes = 0,
  reason = null,
  detail = null,
  worker = null,
  ended_at = null,
  cancel = case when :again and not :undo then null else cancel end,
  rollback = case when :again then 0 else rollback end,
  deadline_at = case when :again then null else deadline_at end
where id = :run

-- name: forget_unfinished_tries
-- Forget the tries of the run's super-step of which nobody knows how they ended.
delete from perdure.attempts
where run = :run
  and super_step = (select super_step from perdure.runs where id = :run)
  and error is null

-- name: head_of_thread
-- The thread's head: its id, its ordinal, and whether nobody has begun it.
select r.id, r.ordinal, r.state = 'queued' and r.started_at is null
from perdure.threads t
join perdure.runs r on r.id = t.head
where t.id = :thread

-- name: would_undo
-- Whether a run, if it went on from the state at its own boundary, would undo that of later runs.
select
  r.super_step > 1
  and b.state is not null
  and (t.snapshot_run is not r.id or not :goes_first)
from perdure.runs r
join perdure.threads t on t.id = r.thread
join perdure.checkpoints b on b.run = r.id and b.super_step = r.super_step and b.key = ''
where r.id = :run

-- name: deepen_thread
-- Add an unfinished run to the thread, under this head.
update perdure.threads
set depth = depth + 1, head = :head
where id = :thread

-- name: unready
-- Put a run behind the new head of its thread.
update perdure.runs
set ready = 0
where id = :run

-- name: watch
-- Ask to be told when one of these unfinished runs ends.
update perdure.runs
set watched = 1
where id = any(:runs)
  and not watched
  and ended_at is null
