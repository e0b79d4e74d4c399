-- name: answer
-- Answer an interrupt; whether this was its first answer, and what it is then.
select
  created, id, run, thread, thread_id, agent, super_step, key, name, state, payload, schema, digest, on_timeout,
  assignee, tenant, created_at, expires_at, answer, answered_by, answered_at
from perdure.answer(:interrupt, :answer, :by, :b_digest, :b_data)

-- name: get_interrupts
-- These interrupts, by id, as they are by now; the columns are those of `records.Interrupt`.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= perdure.now_us() then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from perdure.interrupts i
join perdure.runs r on r.id = i.run
join perdure.threads t on t.id = r.thread
where i.id = any(:interrupts)
order by i.id

-- name: interrupts
-- A page of interrupts, oldest id first. (What is null is left out of the plan, which is made for each call: so the
-- index of the open ones serves those who ask for these.)
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= (select perdure.now_us()) then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from perdure.interrupts i
join perdure.runs r on r.id = i.run
join perdure.threads t on t.id = r.thread
where i.id > :after
  and (:state::text is null or :state not in ('open', 'expired') or i.state in ('open', :state))
  and (:state::text is null or :state <> 'open' or i.state = 'open')
  and (:state::text is null or :state in ('open', 'expired') or i.state = :state)
  and (
    :state::text is null
    or :state not in ('open', 'expired')
    or i.state <> 'open'
    or coalesce(i.expires_at <= (select perdure.now_us()), false) = (:state = 'expired')
  )
  and (:assignee::text is null or i.assignee = :assignee)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
order by i.id
limit :limit

-- name: interrupts_of
-- The same for one run or one thread, along their own indexes; which questions are open is asked of runs that go on.
select
  i.id, i.run, r.thread, t.thread_id, r.agent, i.super_step, i.key, i.name,
  case when i.state = 'open' and i.expires_at <= (select perdure.now_us()) then 'expired' else i.state end as state,
  i.payload, i.schema, i.digest, i.on_timeout, i.assignee, r.tenant, i.created_at, i.expires_at, i.answer,
  i.answered_by, i.answered_at
from (
  select :run::bigint as id
  where :run is not null
  union all
  select o.id
  from perdure.threads h
  join perdure.runs o on o.thread = h.id
  where :run is null
    and h.thread_id = :thread_id
    and (:state::text is null or :state <> 'open' or o.ended_at is null)
) mine
join perdure.runs r on r.id = mine.id
join perdure.threads t on t.id = r.thread
join perdure.interrupts i on i.run = r.id
where i.id > :after
  and (:thread_id::text is null or t.thread_id = :thread_id)
  and (
    :state::text is null
    or :state = case when i.state = 'open' and i.expires_at <= (select perdure.now_us()) then 'expired' else i.state end
  )
  and (:assignee::text is null or i.assignee = :assignee)
  and (:agent::text is null or r.agent = :agent)
  and (:tenant::text is null or r.tenant = :tenant)
order by i.id
limit :limit
