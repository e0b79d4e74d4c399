-- The core: who works, what runs, what was recorded.
--
-- Times are microseconds on the store's clock. No foreign keys: every write already holds what it refers to, and a
-- check per row would read pages that nothing else needs. Nothing that changes at every step is indexed.

create table perdure.ids (
  next integer not null
) strict;

insert into perdure.ids values (1);

create table perdure.workers (
  id integer primary key,
  name text not null,
  host text not null,
  pid integer not null,
  deployment text not null,
  state text not null,
  idle integer not null default 0,
  session integer not null default 0, -- its lock file tells of its death
  started_at integer not null,
  lease_until integer not null,
  ended_at integer
) strict;

-- Dead workers stay as history; the questions asked all day are about the living.
create index perdure.workers_alive on workers (id) where state = 'alive';

create table perdure.threads (
  id integer primary key,
  thread_id text not null unique,
  agent text not null,
  head integer,
  depth integer not null,
  last_ordinal integer not null,
  snapshot_run integer,
  snapshot_step integer,
  created_at integer not null
) strict;

create table perdure.runs (
  id integer primary key,
  thread integer not null,
  ordinal integer not null,
  agent text not null,
  queue text not null,
  deployment text,
  state text not null,
  reason text,
  detail text,
  ready integer not null,
  ready_at integer not null,
  priority integer not null,
  worker integer,
  fence integer not null default 0,
  attempt integer not null default 0,
  recoveries integer not null default 0,
  strikes integer not null default 0,
  super_step integer not null default 1,
  key text,
  tenant text,
  tags text not null default '[]',
  watched integer not null default 0,
  created_at integer not null,
  started_at integer,
  ended_at integer
) strict;

-- What a claim walks along.
create index perdure.runs_claimable on runs (priority desc, ready_at, id) where state = 'queued' and ready;

-- A thread's next run.
create index perdure.runs_open on runs (thread, ordinal) where ended_at is null;

-- What a worker holds.
create index perdure.runs_worker on runs (worker) where worker is not null;

-- A thread's history.
create unique index perdure.runs_thread on runs (thread, ordinal);

create table perdure.starts (
  key text primary key,
  run integer not null,
  digest blob not null
) strict, without rowid;

-- With a rowid: a batch holds one row each of many runs. So the rows are appended side by side, and only the small
-- index entries lie scattered: four times the rows a second of a `without rowid` table, and a third of its WAL.
create table perdure.checkpoints (
  run integer not null,
  super_step integer not null,
  key text not null,
  kind integer not null,
  seq integer not null,
  fence integer not null,
  worker integer not null,
  attempt integer not null,
  digest integer not null,
  failed integer not null,
  payload blob not null,
  state blob,
  started_at integer not null,
  ended_at integer not null,
  primary key (run, super_step, key)
) strict;

create table perdure.attempts (
  run integer not null,
  super_step integer not null,
  key text not null,
  attempt integer not null,
  fence integer not null,
  error blob,
  started_at integer not null,
  ended_at integer,
  primary key (run, super_step, key, attempt)
) strict, without rowid;

create table perdure.blobs (
  thread integer not null,
  digest blob not null,
  data blob not null,
  primary key (thread, digest)
) strict;
