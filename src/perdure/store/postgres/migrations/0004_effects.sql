-- The ledger of effects: what runs did, or may have done, to the outside world, and what was written of it.

create table perdure.effects (
  id bigint primary key,
  run bigint not null,
  fence bigint not null,
  worker bigint not null,
  intended_at bigint not null,
  settled_at bigint,
  digest bigint not null,
  super_step integer not null,
  attempt integer not null,
  undo_attempt integer not null default 0,
  rev integer not null default 1,
  undoable boolean not null,
  state text collate "C" not null,
  policy text collate "C" not null,
  key text collate "C" not null,
  name text collate "C" not null,
  code text collate "C" not null,
  idempotency_key text collate "C" not null,
  note text collate "C",
  by text collate "C",
  arguments bytea not null,
  outcome bytea
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create unique index effects_place on perdure.effects (run, super_step, key);

-- What somebody may have to look at: few rows among all that are done.
create index effects_open on perdure.effects (id) where state in ('intended', 'unknown', 'undoing', 'undo_failed');

create table perdure.effect_events (
  effect bigint not null,
  at bigint not null,
  worker bigint,
  fence bigint,
  rev integer not null,
  attempt integer not null,
  state text collate "C" not null,
  note text collate "C",
  by text collate "C",
  primary key (effect, rev)
) with (autovacuum_vacuum_cost_delay = 0);

-- How a run will end once its effects have been undone; null in all others.
alter table perdure.runs
  add column undo_outcome text collate "C",
  add column undo_payload bytea;

-- These say and take more than they did; to processes that are older they are the same.
drop function if exists perdure.claim;

drop function if exists perdure.retry;
