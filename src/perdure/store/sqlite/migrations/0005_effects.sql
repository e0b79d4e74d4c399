-- The ledger of effects: what runs did, or may have done, to the outside world; and the runs that undo it.

-- How a run will end once its effects have been undone.
alter table perdure.runs add column undo_outcome text;
alter table perdure.runs add column undo_payload blob;

create table perdure.effects (
  id integer primary key,
  run integer not null,
  super_step integer not null,
  fence integer not null,
  worker integer not null,
  intended_at integer not null,
  settled_at integer,
  digest integer not null,
  attempt integer not null,
  undo_attempt integer not null default 0,
  rev integer not null default 1,
  state text not null,
  policy text not null,
  undoable integer not null,
  key text not null,
  name text not null,
  code text not null,
  idempotency_key text not null,
  arguments blob not null,
  outcome blob,
  note text,
  said_by text
) strict;

create unique index perdure.effects_place on effects (run, super_step, key);

-- What somebody may have to see to. A worker's sight of an outcome leaves it again.
create index perdure.effects_open on effects (id) where state in ('intended', 'unknown', 'undoing', 'undo_failed');

-- The audit. Its rows are read one effect at a time, and written in the order of time.
create table perdure.effect_events (
  effect integer not null,
  rev integer not null,
  at integer not null,
  state text not null,
  attempt integer not null,
  worker integer,
  fence integer,
  said_by text,
  note text,
  primary key (effect, rev)
) strict, without rowid;
