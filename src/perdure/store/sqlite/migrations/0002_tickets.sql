-- A worker numbers its claims, so that one that comes too late can be told from one that is expected.

alter table perdure.workers add column ticket integer not null default 0;
