-- The outbox, meters and budgets: what runs hand over, what they have used, and what they may use. Only what is null
-- where nobody uses it is added to older tables.

create table perdure.lanes (
  last_seq bigint not null,
  depth bigint not null, -- open ones
  sink text collate "C" not null,
  partition text collate "C" not null,
  primary key (sink, partition)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create table perdure.deliveries (
  id bigint primary key,
  run bigint not null,
  fence bigint not null,
  seq bigint not null,
  due_at bigint not null,
  created_at bigint not null,
  settled_at bigint,
  worker bigint,
  attempts integer not null default 0,
  strikes integer not null default 0,
  bill boolean not null,
  ready boolean not null,
  state text collate "C" not null,
  sink text collate "C" not null,
  partition text collate "C" not null,
  key text collate "C" not null,
  error text collate "C",
  payload bytea not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- By its key first, for who does not say whose.
create unique index deliveries_key on perdure.deliveries (key, sink);

-- What a claim walks along.
create index deliveries_claimable on perdure.deliveries (sink, due_at, id) where state = 'queued' and ready;

-- Few rows or none: a claim that looks for suspects does not search the queue for them. (3: SUSPECT_STRIKES.)
create index deliveries_suspects on perdure.deliveries (due_at, id) where state = 'queued' and ready and strikes >= 3;

-- A lane's deliveries behind its head.
create index deliveries_backlog on perdure.deliveries (sink, partition, seq) where state = 'queued' and not ready;

create index deliveries_worker on perdure.deliveries (worker) where worker is not null;

-- A run's deliveries, and its bills among them.
create index deliveries_run on perdure.deliveries (run, bill, id);

-- What somebody may have to look at: few rows among all that are delivered.
create index deliveries_undelivered on perdure.deliveries (id) where state in ('queued', 'delivering', 'dead');

create table perdure.meters (
  run bigint not null,
  fence bigint not null,
  quantity bigint not null,
  at bigint not null,
  super_step integer not null,
  attempt integer not null,
  number integer not null,
  key text collate "C" not null,
  name text collate "C" not null,
  attributes bytea not null,
  primary key (run, super_step, key, attempt, fence, number)
) with (autovacuum_vacuum_cost_delay = 0);

-- What was used in a span of time.
create index meters_at on perdure.meters (at);

-- Amounts are dollars (in billionths), tokens, tries and microseconds, in this order; a limit that is null is none.
-- `reserved` is the sum of the reservations, also of those by claims that are over.
create table perdure.budgets (
  id bigint primary key,
  rev bigint not null,
  created_at bigint not null,
  updated_at bigint not null,
  name text collate "C" not null unique,
  by text collate "C",
  limits bigint[] not null check (cardinality(limits) = 4),
  spent bigint[] not null default '{0, 0, 0, 0}' check (cardinality(spent) = 4),
  reserved bigint[] not null default '{0, 0, 0, 0}' check (cardinality(reserved) = 4)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create table perdure.reservations (
  run bigint not null,
  budget bigint not null,
  fence bigint not null,
  super_step integer not null,
  key text collate "C" not null,
  amounts bigint[] not null,
  primary key (run, super_step, key, budget)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create index reservations_budget on perdure.reservations (budget);

-- That its end was on record before it was written last, under the same fence: what it has used was counted.
alter table perdure.attempts add column told boolean;

-- The budgets that it was given, and where its bill goes.
alter table perdure.runs
  add column budgets bigint[],
  add column bill_sink text collate "C",
  add column bill_key text collate "C";

-- The budget that a question is about.
alter table perdure.interrupts add column budget bigint;

create index interrupts_budget on perdure.interrupts (budget) where state = 'open' and budget is not null;

-- The sender's own name for a message. One that has one is known by it for ever.
alter table perdure.messages add column key text collate "C";

create unique index messages_key on perdure.messages (thread, key) where key is not null;

drop index perdure.messages_taken;

create index messages_taken on perdure.messages (thread, taken_at) where taken_at is not null and key is null;

-- These say and take more than they did; to processes that are older they are the same.
drop function if exists perdure.claim;

drop function if exists perdure.start_runs;

drop function if exists perdure.commit_waits;

drop function if exists perdure.bounces;

drop function if exists perdure.deliver;

drop function if exists perdure.send;
