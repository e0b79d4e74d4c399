-- name: named_mailboxes
-- The mailboxes of the threads of these names, as a JSON array.
select json_group_array(json_array(thread_id, id, mail, last_message))
from perdure.threads
where thread_id in (values (?))

-- name: mailboxes
-- The same of the threads of these ids.
select json_group_array(json_array(thread_id, id, mail, last_message))
from perdure.threads
where id = any(:threads)

-- name: known_messages
-- Which of these messages have arrived, as a JSON array.
select json_group_array(json_array(id, thread, seq))
from perdure.messages
where id = any(:ids)

-- name: known_message_keys
-- Which of these keys messages of these threads have had, with the first such message and its place, as a JSON array.
with mine (thread, key) as (
  values (?, ?)
)
select json_group_array(json_array(k.thread, k.key, k.message, k.seq))
from mine m
join perdure.message_keys k on k.thread = m.thread and k.key = m.key

-- name: insert_message_keys
-- Remember these keys of messages.
insert into perdure.message_keys (thread, key, message, seq)
select *
from (values (?, ?, ?, ?))
where column1 is not null

-- name: mail_at
-- Which of these pairs of thread and seq are in a mailbox, as a JSON array.
select json_group_array(json_array(m.thread, m.seq, m.id))
from json_each(:places) p
join perdure.messages m
  on m.thread = json_extract(p.value, '$[0]')
 and m.seq = json_extract(p.value, '$[1]')
where m.received_at is null and m.dead is null

-- name: insert_messages
-- Put these messages into their mailboxes.
insert into perdure.messages (id, thread, seq, sender, label, payload, sent_at)
select *
from (values (?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: receive_messages
-- Take these messages out of their mailboxes; that they have been there is known for a while.
update perdure.messages
set payload = null, received_at = :now
where id = any(:ids)

-- name: bury_message
-- Put a message among the dead letters.
update perdure.messages
set dead = :reason
where id = :id

-- name: forget_messages
-- Forget what these threads received before a time.
delete from perdure.messages
where received_at is not null
  and thread = any(:threads)
  and received_at < :before

-- name: move_mailboxes
-- Set how many messages these threads' mailboxes hold, and the number of the last.
update perdure.threads
set mail = m.mail, last_message = m.last_message
from (
  select
    json_extract(value, '$[0]') as thread, json_extract(value, '$[1]') as mail,
    json_extract(value, '$[2]') as last_message
  from json_each(:mailboxes)
) m
where threads.id = m.thread

-- name: mailbox
-- A page of a mailbox in the order of arrival; the columns are those of `records.Message`.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where received_at is null and dead is null
  and thread = :thread
  and seq > :after
order by seq
limit :limit

-- name: dead_letters
-- A page of a thread's dead letters, by id.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where dead is not null
  and thread = :thread
  and id > :after
order by id
limit :limit

-- name: all_dead_letters
-- A page of all dead letters, by id.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where dead is not null
  and id > :after
order by id
limit :limit

-- name: dead_letter
-- A dead letter: its thread and its label.
select thread, label
from perdure.messages
where id = :id and dead is not null

-- name: revive_message
-- Put a dead letter back at the end of its mailbox.
update perdure.messages
set dead = null, seq = :seq
where id = :id

-- name: get_message
-- A message; the columns are those of `records.Message`.
select id, thread, seq, sender, label, payload, sent_at, dead
from perdure.messages
where id = :id
