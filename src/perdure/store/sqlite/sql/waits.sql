-- name: waits
-- What these runs wait for, all of it or, with `ready_min` 1, what is ready; the columns are those of `records.Wait`.
with seen as materialized (
  select
    w.run, w.super_step, w.key, w.kind, w.opened_at, w.due_at, w.target, w.labels,
    ifnull(w.due_at <= :now, 0) or case w.kind
      when 1 then exists (select 1 from perdure.interrupts i where i.id = w.target and i.state <> 'open')
      when 2 then exists (
        select 1
        from perdure.runs r
        join perdure.messages m on m.thread = r.thread
        where r.id = w.run
          and m.received_at is null and m.dead is null
          and (w.labels is null or m.label in (select value from json_each(w.labels)))
      )
      when 3 then exists (
        select 1
        from perdure.runs r
        where r.id = w.target and r.state in ('completed', 'failed', 'cancelled', 'held')
      )
      when 4 then exists (select 1 from perdure.threads t where t.id = w.target and t.mail < :mailbox_max)
      else 0
    end as ready,
    ifnull(w.due_at <= :now, 0) as due
  from perdure.waits w
  where w.run = any(:runs)
)
select run, super_step, key, kind, opened_at, due_at, target, labels, ready, due
from seen
where ready >= :ready_min
order by run, key

-- name: waits_at
-- Which of these places have a wait, as a JSON array.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
select json_group_array(json_array(w.run, w.super_step, w.key))
from mine m
join perdure.waits w on w.run = m.run and w.super_step = m.super_step and w.key = m.key

-- name: super_steps
-- Where these runs are, as a JSON array.
select json_group_array(json_array(id, super_step))
from perdure.runs
where id = any(:runs)

-- name: open_waits
-- Begin these waits.
insert into perdure.waits (run, super_step, key, kind, opened_at, due_at, target, labels)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: close_waits
-- End the waits at these places.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
delete from perdure.waits
where rowid in (
  select w.rowid
  from mine m
  join perdure.waits w on w.run = m.run and w.super_step = m.super_step and w.key = m.key
)

-- name: close_all_waits
-- End the waits of these runs' super-steps before the given ones.
delete from perdure.waits
where rowid in (
  select w.rowid
  from json_each(:steps) s
  join perdure.waits w
    on w.run = json_extract(s.value, '$[0]')
   and w.super_step < json_extract(s.value, '$[1]')
)

-- name: withdraw_all_interrupts
-- Withdraw the open interrupts of these runs' super-steps before the given ones.
update perdure.interrupts
set state = 'withdrawn'
where id in (
  select i.id
  from json_each(:steps) s
  join perdure.interrupts i
    on i.run = json_extract(s.value, '$[0]')
   and i.super_step < json_extract(s.value, '$[1]')
   and i.state = 'open'
)

-- name: park_runs
-- Let go of these runs until the first of their times comes.
update perdure.runs
set
  state = 'waiting',
  worker = null,
  strikes = 0,
  ready_at = min(
    ifnull((select min(w.due_at) from perdure.waits w where w.run = runs.id), :never),
    ifnull(deadline_at, :never)
  )
where id = any(:runs)

-- name: due_already
-- Whether one of these runs may be claimed at once.
select exists (
  select 1
  from perdure.runs
  where id = any(:runs)
    and state in ('queued', 'waiting') and ready
    and ready_at <= :now
)

-- name: wake_runs
-- Send these runs on, those that are parked.
update perdure.runs
set state = 'queued', ready_at = :now
where id = any(:runs)
  and state = 'waiting'

-- name: are_running
-- Whether one of these runs is in a worker's hands.
select exists (select 1 from perdure.runs where id = any(:runs) and state = 'running')

-- name: waiting_for_answer
-- The run that waits for the answer to its interrupt, as a JSON array.
select json_group_array(w.run)
from perdure.interrupts i
join perdure.waits w on w.run = i.run and w.super_step = i.super_step and w.key = i.key
where i.id = :interrupt
  and w.kind = 1

-- name: waiting_for_room
-- The runs that wait for room in one of these threads' mailboxes, as a JSON array.
select json_group_array(run)
from (
  select distinct run
  from perdure.waits
  where kind = 4
    and target = any(:threads)
)

-- name: waiting_for_mail
-- The heads that wait for one of these pairs of thread and label, as a JSON array.
select json_group_array(run)
from (
  select distinct w.run
  from json_each(:sent) s
  join perdure.threads t on t.id = json_extract(s.value, '$[0]')
  join perdure.waits w on w.run = t.head
  where w.kind = 2
    and (
      w.labels is null
      or exists (select 1 from json_each(w.labels) l where l.value = json_extract(s.value, '$[1]'))
    )
)

-- name: next_due
-- When the next parked run's time comes, over all priorities: each of them is one look into the claims' index.
with recursive priorities (priority) as (
  select max(priority)
  from perdure.runs
  where state in ('queued', 'waiting') and ready
  union all
  select (
    select r.priority
    from perdure.runs r
    where r.state in ('queued', 'waiting') and r.ready
      and r.priority < p.priority
    order by r.priority desc
    limit 1
  )
  from priorities p
  where p.priority is not null
)
select min((
  select r.ready_at
  from perdure.runs r
  where r.state in ('queued', 'waiting') and r.ready
    and r.priority = p.priority
    and r.ready_at > :now
    and r.ready_at < :never
    and r.state = 'waiting'
  order by r.ready_at
  limit 1
))
from priorities p
where p.priority is not null
