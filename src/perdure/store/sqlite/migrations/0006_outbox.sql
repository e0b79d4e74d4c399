-- The outbox, meters and budgets; and the ledger of effects as it is read.

alter table perdure.runs add column budgets text; -- those that it was given, as a JSON array; null: none
alter table perdure.runs add column bill_sink text;
alter table perdure.runs add column bill_key text;

-- The budget that a question is about, and who is to be found where that is set.
alter table perdure.interrupts add column budget integer;
create index perdure.interrupts_budget on interrupts (budget) where state = 'open' and budget is not null;

-- The senders' own names for messages. They stay for ever; messages go.
create table perdure.message_keys (
  thread integer not null,
  key text not null,
  message integer not null,
  seq integer not null,
  primary key (thread, key)
) strict, without rowid;

create table perdure.lanes (
  sink text not null,
  partition text not null,
  last_seq integer not null,
  depth integer not null, -- open ones
  primary key (sink, partition)
) strict, without rowid;

create table perdure.deliveries (
  id integer primary key,
  run integer not null,
  fence integer not null,
  seq integer not null,
  bill integer not null,
  ready integer not null,
  attempts integer not null default 0,
  strikes integer not null default 0,
  due_at integer not null,
  created_at integer not null,
  settled_at integer,
  worker integer,
  state text not null,
  sink text not null,
  partition text not null,
  key text not null,
  payload blob not null,
  error text
) strict;

-- By its key first, for who does not say whose.
create unique index perdure.deliveries_key on deliveries (key, sink);

-- A run's deliveries, and its bills among them.
create index perdure.deliveries_run on deliveries (run, bill, id);

-- What a claim walks along.
create index perdure.deliveries_claimable on deliveries (sink, due_at, id) where state = 'queued' and ready;

-- Few rows or none: a claim that looks for suspects does not search the queue for them. (3: SUSPECT_STRIKES.)
create index perdure.deliveries_suspects on deliveries (due_at, id) where state = 'queued' and ready and strikes >= 3;

-- A lane's next delivery.
create unique index perdure.deliveries_lane on deliveries (sink, partition, seq)
  where state in ('queued', 'delivering');

-- What is in a relay's hands.
create index perdure.deliveries_worker on deliveries (worker) where worker is not null;

-- What somebody may have to see to: few rows among all that are delivered.
create index perdure.deliveries_undelivered on deliveries (id) where state in ('queued', 'delivering', 'dead');

-- With a rowid, as checkpoints, beside which they are written.
create table perdure.meters (
  run integer not null,
  super_step integer not null,
  key text not null,
  attempt integer not null,
  fence integer not null,
  number integer not null,
  quantity integer not null,
  at integer not null,
  name text not null,
  attributes blob not null,
  primary key (run, super_step, key, attempt, fence, number)
) strict;

-- What was used in a span of time.
create index perdure.meters_at on meters (at);

create table perdure.budgets (
  id integer primary key,
  name text not null unique,
  usd_max integer,
  tokens_max integer,
  steps_max integer,
  us_max integer,
  usd_spent integer not null default 0,
  tokens_spent integer not null default 0,
  steps_spent integer not null default 0,
  us_spent integer not null default 0,
  usd_reserved integer not null default 0, -- the sums of its reservations, of claims that are over as well
  tokens_reserved integer not null default 0,
  steps_reserved integer not null default 0,
  us_reserved integer not null default 0,
  rev integer not null,
  created_at integer not null,
  updated_at integer not null,
  said_by text
) strict;

-- With a rowid, by which a set of them is deleted.
create table perdure.reservations (
  run integer not null,
  super_step integer not null,
  key text not null,
  budget integer not null,
  fence integer not null,
  usd integer not null,
  tokens integer not null,
  steps integer not null,
  us integer not null,
  primary key (run, super_step, key, budget)
) strict;

-- What was reserved in a budget.
create index perdure.reservations_budget on reservations (budget);

-- Deliveries as they are read.
create view perdure.outbox as
select
  d.id, d.run, r.thread, t.thread_id, r.agent, r.tenant, d.sink, d.partition, d.seq, d.key, d.bill, d.fence, d.payload,
  d.state, d.ready, d.attempts, d.strikes, d.due_at, d.created_at, d.settled_at, d.error, d.worker
from perdure.deliveries d
join perdure.runs r on r.id = d.run
join perdure.threads t on t.id = r.thread;

-- Effects as they are read: an intent is unknown once the claim that it was written under is over. Until `lease_until`
-- its worker may still be at it. `stored` is the state as it was written, and what indexes know.
create view perdure.ledger as
select
  e.id, e.run, r.thread, t.thread_id, r.agent, r.tenant, e.super_step, e.key, e.name, e.code, e.idempotency_key,
  e.policy, e.undoable,
  case
    when e.state = 'intended' and (r.state <> 'running' or r.fence <> e.fence) then 'unknown'
    else e.state
  end as state,
  e.attempt, e.undo_attempt, e.digest, e.arguments, e.outcome, e.note, e.said_by, e.worker, e.fence, e.rev,
  e.intended_at, e.settled_at, ifnull(w.lease_until, 0) as lease_until, e.state as stored
from perdure.effects e
join perdure.runs r on r.id = e.run
join perdure.threads t on t.id = r.thread
left join perdure.workers w on w.id = e.worker;
