-- Waiting without a worker: what runs wait for, the questions they ask, the mail they get; and parents, deadlines and
-- cancellations.

alter table perdure.runs add column parent integer;
alter table perdure.runs add column detached integer not null default 0;
alter table perdure.runs add column deadline_at integer;
alter table perdure.runs add column cancel text;
alter table perdure.runs add column rollback integer not null default 0;

-- The checkpoint with the thread's state from before this run; super-step 0 where the thread had none.
alter table perdure.runs add column base_run integer;
alter table perdure.runs add column base_step integer;

alter table perdure.threads add column mail integer not null default 0; -- messages in the mailbox
alter table perdure.threads add column last_message integer not null default 0;

-- What a claim walks along. A run that waits without a time lies at the end of it, behind all that are due.
drop index perdure.runs_claimable;
create index perdure.runs_claimable on runs (priority desc, ready_at, id) where state in ('queued', 'waiting') and ready;

-- A run's children.
create index perdure.runs_parent on runs (parent) where parent is not null;

-- With a rowid, by which a set of them is deleted.
create table perdure.waits (
  run integer not null,
  super_step integer not null,
  key text not null,
  kind integer not null,
  opened_at integer not null,
  due_at integer,
  target integer,
  labels text, -- null: any
  primary key (run, super_step, key)
) strict;

-- Who waits for the end of a run, and for room in a mailbox.
create index perdure.waits_run on waits (target) where kind = 3;
create index perdure.waits_room on waits (target) where kind = 4;

create table perdure.interrupts (
  id integer primary key,
  run integer not null,
  super_step integer not null,
  key text not null,
  name text not null,
  state text not null,
  payload blob not null,
  schema blob,
  digest text not null,
  on_timeout text not null,
  assignee text,
  created_at integer not null,
  expires_at integer,
  answer blob,
  answered_by text,
  answered_at integer
) strict;

create unique index perdure.interrupts_place on interrupts (run, super_step, key);

-- The inbox.
create index perdure.interrupts_open on interrupts (id) where state = 'open';

create table perdure.messages (
  id integer primary key,
  thread integer not null,
  seq integer not null,
  sender text not null,
  label text not null,
  payload blob, -- null once it has been received: then only its id is kept for a while
  sent_at integer not null,
  received_at integer,
  dead text
) strict;

create unique index perdure.messages_mailbox on messages (thread, seq) where received_at is null and dead is null;

-- What is kept for a while.
create index perdure.messages_received on messages (thread, received_at) where received_at is not null;

create index perdure.messages_dead on messages (thread, id) where dead is not null;
create index perdure.messages_graveyard on messages (id) where dead is not null;
