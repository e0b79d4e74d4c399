-- The nouns of the store. Columns go from wide to narrow, so that no row pays for alignment; ids are bigint, times are
-- microseconds, names sort by their bytes. There are no foreign keys: fences guard what references would.

create table perdure.meta (
  version bigint not null,
  only_row boolean primary key default true check (only_row)
);

create sequence perdure.ids;

-- A renewal changes no indexed column and finds room on its page: the table stays as small as the fleet.
create table perdure.workers (
  id bigint primary key,
  lease_until bigint not null,
  started_at bigint not null,
  ended_at bigint,
  pid bigint not null,
  idle boolean not null default false,
  session boolean not null default false,
  state text collate "C" not null,
  name text collate "C" not null,
  host text collate "C" not null,
  deployment text collate "C" not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 0);

create index workers_alive on perdure.workers (id) where state = 'alive';

create table perdure.threads (
  id bigint primary key,
  last_ordinal bigint not null,
  depth bigint not null,
  created_at bigint not null,
  head bigint,
  snapshot_run bigint,
  snapshot_step bigint,
  thread_id text collate "C" not null unique,
  agent text collate "C" not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table perdure.runs (
  id bigint primary key,
  thread bigint not null,
  ordinal bigint not null,
  ready_at bigint not null,
  fence bigint not null,
  created_at bigint not null,
  worker bigint,
  started_at bigint,
  ended_at bigint,
  priority integer not null,
  attempt integer not null,
  recoveries integer not null,
  strikes integer not null,
  super_step integer not null,
  ready boolean not null,
  watched boolean not null default false,
  state text collate "C" not null,
  agent text collate "C" not null,
  queue text collate "C" not null,
  deployment text collate "C",
  reason text collate "C",
  detail text collate "C",
  key text collate "C",
  tenant text collate "C",
  tags text[] not null default '{}',
  digest bytea not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create unique index runs_thread on perdure.runs (thread, ordinal);

create index runs_open on perdure.runs (thread, ordinal)
  where state in ('queued', 'running', 'waiting', 'held');

-- Queue and agent come first: a backlog in one lane costs nothing to a claim from another.
create index runs_claimable on perdure.runs (queue, agent, priority desc, ready_at, id)
  where state = 'queued' and ready;

-- Few rows or none: a claim that looks for suspects does not search the queue for them. (3: SUSPECT_STRIKES.)
create index runs_suspect on perdure.runs (priority desc, ready_at, id)
  where state = 'queued' and ready and strikes >= 3;

create index runs_worker on perdure.runs (worker) where worker is not null;

create table perdure.starts (
  run bigint not null,
  key text collate "C" primary key,
  digest bytea not null
);

create table perdure.checkpoints (
  run bigint not null,
  fence bigint not null,
  worker bigint not null,
  digest bigint not null,
  started_at bigint not null,
  ended_at bigint not null,
  super_step integer not null,
  seq integer not null,
  attempt integer not null,
  kind smallint not null,
  failed boolean not null,
  key text collate "C" not null,
  payload bytea not null,
  state bytea,
  primary key (run, super_step, key)
) with (autovacuum_vacuum_cost_delay = 0);

create table perdure.attempts (
  run bigint not null,
  fence bigint not null,
  started_at bigint not null,
  ended_at bigint,
  super_step integer not null,
  attempt integer not null,
  key text collate "C" not null,
  error bytea,
  primary key (run, super_step, key, attempt)
);

create table perdure.blobs (
  thread bigint not null,
  digest bytea not null,
  data bytea not null,
  primary key (thread, digest)
);
