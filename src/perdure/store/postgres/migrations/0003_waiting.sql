-- Waiting without a worker: what runs wait for, the questions they ask, the mail they get; and parents, deadlines and
-- cancellations. Only what is null or false where nobody waits is added to older tables, so that their rows stay as
-- narrow as they are.

alter table perdure.runs
  add column parent bigint,
  add column deadline_at bigint,
  add column base_run bigint, -- the checkpoint with the thread's state from before this run;
  add column base_step integer, -- super-step 0 where the thread had none, null where the run has not moved it
  add column awaited boolean not null default false,
  add column detached boolean not null default false,
  add column rollback boolean not null default false,
  add column cancel text collate "C";

alter table perdure.threads
  add column mail bigint, -- messages in the mailbox; null where there never was one
  add column last_message bigint;

-- What a claim walks along. A run that waits without a time is not in it, and costs it nothing. (The number: NEVER_US.)
drop index perdure.runs_claimable;

create index runs_claimable on perdure.runs (queue, agent, priority desc, ready_at, id)
  where state in ('queued', 'waiting') and ready and ready_at < 4611686018427387904;

drop index perdure.runs_suspect;

create index runs_suspect on perdure.runs (priority desc, ready_at, id)
  where state in ('queued', 'waiting') and ready and ready_at < 4611686018427387904 and strikes >= 3;

-- A thread's runs behind its head. (Of a parked one, a thread has nothing here.)
drop index perdure.runs_open;

create index runs_backlog on perdure.runs (thread, ordinal) where state in ('queued', 'held') and not ready;

-- When the next one is due.
create index runs_due on perdure.runs (ready_at)
  where state = 'waiting' and ready_at < 4611686018427387904;

create index runs_parent on perdure.runs (parent, id) where parent is not null;

create table perdure.waits (
  run bigint not null,
  opened_at bigint not null,
  due_at bigint,
  target bigint,
  super_step integer not null,
  kind smallint not null,
  key text collate "C" not null,
  labels text[],
  primary key (run, super_step, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Who waits for the end of a run (3), and for room in a mailbox (4); the other kinds are found by their own run.
create index waits_target on perdure.waits (target) where kind >= 3;

create table perdure.interrupts (
  id bigint primary key,
  run bigint not null,
  created_at bigint not null,
  expires_at bigint,
  answered_at bigint,
  super_step integer not null,
  state text collate "C" not null,
  key text collate "C" not null,
  name text collate "C" not null,
  digest text collate "C" not null,
  on_timeout text collate "C" not null,
  assignee text collate "C",
  answered_by text collate "C",
  payload bytea not null,
  schema bytea,
  answer bytea
) with (autovacuum_vacuum_cost_delay = 0);

create unique index interrupts_place on perdure.interrupts (run, super_step, key);

-- The inbox, and one person's.
create index interrupts_open on perdure.interrupts (id) where state = 'open';

create index interrupts_assigned on perdure.interrupts (assignee, id) where state = 'open' and assignee is not null;

create table perdure.messages (
  id bigint primary key,
  thread bigint not null,
  seq bigint not null,
  sent_at bigint not null,
  taken_at bigint,
  sender text collate "C" not null,
  label text collate "C" not null,
  dead text collate "C",
  payload bytea not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create index messages_mailbox on perdure.messages (thread, seq) where taken_at is null and dead is null;

-- What is known by its id for a while.
create index messages_taken on perdure.messages (thread, taken_at) where taken_at is not null;

create index messages_dead on perdure.messages (id) where dead is not null;

create index messages_dead_of_thread on perdure.messages (thread, id) where dead is not null;

-- These say more than they did; to processes that are older they say the same.
drop function if exists perdure.append;

drop function if exists perdure.append_one;

drop function if exists perdure.commit;

drop function if exists perdure.claim;
