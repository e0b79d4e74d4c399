-- name: send
-- Put messages into mailboxes; one row for each, in order.
select thread, seq, why, id
from perdure.send(
  :id, :thread_id, :sender, :label, :payload, :blob_message, :blob_digest, :blob_data, :mailbox_max, :memory_us,
  :key
)

-- name: mailbox
-- A page of a mailbox; the columns are those of `records.Message`.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where thread = :thread
  and taken_at is null
  and dead is null
  and seq > :after
order by seq
limit :limit

-- name: dead_letters
-- A page of dead letters, of one thread or of all.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where dead is not null
  and (:thread::bigint is null or thread = :thread)
  and id > :after
order by id
limit :limit

-- name: revive
-- Put a dead letter back; whether there was one.
select perdure.revive(:message)

-- name: get_message
-- A message.
select id, thread, seq, sender, label, payload, sent_at, dead from perdure.messages where id = :message
