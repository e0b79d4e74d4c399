-- name: interrupts_at
-- The interrupts at these places, as a JSON array.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
select json_group_array(json_array(i.run, i.super_step, i.key, i.id, i.state, i.expires_at, i.budget))
from mine m
join perdure.interrupts i on i.run = m.run and i.super_step = m.super_step and i.key = m.key

-- name: insert_interrupts
-- Ask these questions.
insert into perdure.interrupts (
  id, run, super_step, key, name, payload, schema, digest, on_timeout, assignee, created_at, expires_at, budget,
  state
)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: move_interrupts
-- Set the state of these interrupts, when they expire, and what budget they are about.
update perdure.interrupts
set state = m.state, expires_at = m.expires_at, budget = m.budget
from (
  select
    json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as state, json_extract(value, '$[2]') as expires_at,
    json_extract(value, '$[3]') as budget
  from json_each(:moves)
) m
where interrupts.id = m.id

-- name: answer_interrupt
-- Answer an open interrupt.
update perdure.interrupts
set state = 'answered', answer = :answer, answered_by = :by, answered_at = :now
where id = :id

-- name: expire_interrupt
-- Note that an open interrupt has expired.
update perdure.interrupts
set state = 'expired'
where id = :id and state = 'open'

-- name: get_interrupts
-- These interrupts, by id; the columns are those of `records.Interrupt`, in its order.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= :now then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from perdure.interrupts i
join perdure.runs r on r.id = i.run
join perdure.threads t on t.id = r.thread
where i.id = any(:ids)
order by i.id

-- name: open_interrupts
-- A page of the inbox: what is open and whose time has not come, oldest first.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name, i.state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from perdure.interrupts i
join perdure.runs r on r.id = i.run
join perdure.threads t on t.id = r.thread
where i.state = 'open'
  and i.id > :after
  and (i.expires_at is null or i.expires_at > :now)
  and (:assignee is null or i.assignee = :assignee)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
order by i.id
limit :limit

-- name: list_interrupts
-- A page of interrupts in any state, oldest first; an open one whose time has come counts as expired.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= :now then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from perdure.interrupts i
join perdure.runs r on r.id = i.run
join perdure.threads t on t.id = r.thread
where i.id > :after
  and (:state is null or :state = case when i.state = 'open' and i.expires_at <= :now then 'expired' else i.state end)
  and (:assignee is null or i.assignee = :assignee)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
order by i.id
limit :limit

-- name: list_run_interrupts
-- The same for one run or one thread, along their own indexes.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= :now then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from (
  select cast(:run as integer) as id
  where :run is not null
  union all
  select o.id
  from perdure.threads h
  join perdure.runs o on o.thread = h.id
  where :run is null and h.thread_id = :thread_id
) mine
join perdure.runs r on r.id = mine.id
join perdure.threads t on t.id = r.thread
join perdure.interrupts i on i.run = r.id
where i.id > :after
  and (:thread_id is null or t.thread_id = :thread_id)
  and (:state is null or :state = case when i.state = 'open' and i.expires_at <= :now then 'expired' else i.state end)
  and (:assignee is null or i.assignee = :assignee)
  and (:agent is null or r.agent = :agent)
  and (:tenant is null or r.tenant = :tenant)
order by i.id
limit :limit
