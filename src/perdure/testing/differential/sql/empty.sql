-- name: empty
-- Delete all rows; for a few rows that is twenty times faster than to truncate.
with
  checkpoints as (delete from perdure.checkpoints),
  attempts as (delete from perdure.attempts),
  blobs as (delete from perdure.blobs),
  starts as (delete from perdure.starts),
  threads as (delete from perdure.threads),
  workers as (delete from perdure.workers),
  waits as (delete from perdure.waits),
  interrupts as (delete from perdure.interrupts),
  messages as (delete from perdure.messages),
  effects as (delete from perdure.effects),
  events as (delete from perdure.effect_events),
  lanes as (delete from perdure.lanes),
  deliveries as (delete from perdure.deliveries),
  meters as (delete from perdure.meters),
  budgets as (delete from perdure.budgets),
  reservations as (delete from perdure.reservations)
delete from perdure.runs
