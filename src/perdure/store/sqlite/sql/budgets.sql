-- name: budgets_held
-- These budgets with all that is reserved in them, as a JSON array; the parts are those of `budgets.Account`.
select json_group_array(json_array(
  id, usd_max, tokens_max, steps_max, us_max, usd_spent, tokens_spent, steps_spent, us_spent, usd_reserved,
  tokens_reserved, steps_reserved, us_reserved
))
from perdure.budgets
where id = any(:ids)

-- name: reservations_at
-- What is reserved at these places, as a JSON array.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
select json_group_array(json_array(v.run, v.super_step, v.key, v.budget, v.fence, v.usd, v.tokens, v.steps, v.us))
from mine m
join perdure.reservations v on v.run = m.run and v.super_step = m.super_step and v.key = m.key

-- name: tries_ended
-- Which of these tries have ended, under which fence, as a JSON array.
with mine (run, super_step, key, attempt) as (
  values (?, ?, ?, ?)
)
select json_group_array(json_array(a.run, a.super_step, a.key, a.attempt, a.fence))
from mine m
join perdure.attempts a
  on a.run = m.run
 and a.super_step = m.super_step
 and a.key = m.key
 and a.attempt = m.attempt
where a.error is not null

-- name: release_reservations
-- Delete what is reserved at these places.
with mine (run, super_step, key) as (
  values (?, ?, ?)
)
delete from perdure.reservations
where rowid in (
  select v.rowid
  from mine m
  join perdure.reservations v on v.run = m.run and v.super_step = m.super_step and v.key = m.key
)

-- name: reservations_left
-- What is still reserved for tries of those of these runs that have ended, as a JSON array.
select json_group_array(json_array(v.budget, v.usd, v.tokens, v.steps, v.us))
from perdure.runs r
join perdure.reservations v on v.run = r.id
where r.id = any(:runs)
  and r.ended_at is not null

-- name: close_reservations
-- Delete what is reserved for tries of those of these runs that have ended.
delete from perdure.reservations
where run in (select id from perdure.runs where id = any(:runs) and ended_at is not null)

-- name: insert_reservations
-- Reserve this.
insert into perdure.reservations (run, super_step, key, budget, fence, usd, tokens, steps, us)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null

-- name: move_budgets
-- Set what is spent and what is reserved of these budgets.
with moves (
  id, usd_spent, tokens_spent, steps_spent, us_spent, usd_reserved, tokens_reserved, steps_reserved, us_reserved
) as (
  values (?, ?, ?, ?, ?, ?, ?, ?, ?)
)
update perdure.budgets
set
  usd_spent = m.usd_spent,
  tokens_spent = m.tokens_spent,
  steps_spent = m.steps_spent,
  us_spent = m.us_spent,
  usd_reserved = m.usd_reserved,
  tokens_reserved = m.tokens_reserved,
  steps_reserved = m.steps_reserved,
  us_reserved = m.us_reserved
from moves m
where budgets.id = m.id

-- name: budgets_named
-- Which of these names budgets have, as a JSON array of name and id.
select json_group_array(json_array(name, id))
from perdure.budgets
where name in (values (?))

-- name: insert_budgets
-- Make these budgets, or set those that are there.
insert into perdure.budgets (
  id, name, usd_max, tokens_max, steps_max, us_max, created_at, updated_at, rev
)
select *, 1
from (values (?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null
on conflict (name) do update set
  usd_max = excluded.usd_max,
  tokens_max = excluded.tokens_max,
  steps_max = excluded.steps_max,
  us_max = excluded.us_max,
  rev = budgets.rev + 1,
  updated_at = excluded.updated_at,
  said_by = excluded.said_by

-- name: set_budget
-- Set a budget's limits, or make it.
insert into perdure.budgets (
  id, name, usd_max, tokens_max, steps_max, us_max, rev, created_at, updated_at, said_by
)
values (:id, :name, :usd, :tokens, :steps, :us, 1, :now, :now, :by)
on conflict (name) do update set
  usd_max = excluded.usd_max,
  tokens_max = excluded.tokens_max,
  steps_max = excluded.steps_max,
  us_max = excluded.us_max,
  rev = budgets.rev + 1,
  updated_at = excluded.updated_at,
  said_by = excluded.said_by

-- name: budget_revs
-- How often these budgets were set, as a JSON array.
select json_group_array(json_array(id, rev))
from perdure.budgets
where id = any(:ids)

-- name: asking_about_budget
-- The open interrupts about a budget, and the runs that wait for an answer to one, as a JSON array.
select json_group_array(json_array(i.id, w.run))
from perdure.interrupts i
left join perdure.waits w on w.run = i.run and w.super_step = i.super_step and w.key = i.key and w.kind = 1
where i.state = 'open'
  and i.budget = :budget

-- name: withdraw_interrupts
-- Withdraw these interrupts.
update perdure.interrupts
set state = 'withdrawn'
where id = any(:ids)

-- name: get_budgets
-- These budgets, by id, as they are read: what a claim that is over has reserved is spent. The columns are the parts of
-- `budgets.BudgetRow`. (Amounts are summed in two parts, of which neither can be too large, and no sum is more than
-- `AMOUNT_MAX`.)
with reserved (budget, is_live, usd, tokens, steps, us) as (
  select
    v.budget,
    r.state = 'running' and r.fence = v.fence,
    min(min(sum(v.usd >> 31), 2147483648) * 2147483648 + sum(v.usd & 2147483647), 4611686018427387903),
    min(min(sum(v.tokens >> 31), 2147483648) * 2147483648 + sum(v.tokens & 2147483647), 4611686018427387903),
    min(min(sum(v.steps >> 31), 2147483648) * 2147483648 + sum(v.steps & 2147483647), 4611686018427387903),
    min(min(sum(v.us >> 31), 2147483648) * 2147483648 + sum(v.us & 2147483647), 4611686018427387903)
  from perdure.reservations v
  join perdure.runs r on r.id = v.run
  where v.budget = any(:ids)
  group by 1, 2
)
select
  b.id, b.name, b.usd_max, b.tokens_max, b.steps_max, b.us_max,
  min(b.usd_spent + ifnull(o.usd, 0), 4611686018427387903) as usd_spent,
  min(b.tokens_spent + ifnull(o.tokens, 0), 4611686018427387903) as tokens_spent,
  min(b.steps_spent + ifnull(o.steps, 0), 4611686018427387903) as steps_spent,
  min(b.us_spent + ifnull(o.us, 0), 4611686018427387903) as us_spent,
  ifnull(l.usd, 0) as usd_reserved, ifnull(l.tokens, 0) as tokens_reserved, ifnull(l.steps, 0) as steps_reserved,
  ifnull(l.us, 0) as us_reserved,
  b.rev, b.created_at, b.updated_at, b.said_by
from perdure.budgets b
left join reserved l on l.budget = b.id and l.is_live
left join reserved o on o.budget = b.id and not o.is_live
where b.id = any(:ids)
order by b.id

-- name: budget_page
-- The ids of a page of budgets, by name, as a JSON array.
select json_group_array(id)
from (
  select id
  from perdure.budgets
  where name >= :prefix
    and name < :past
    and name > :after
  order by name
  limit :limit
)
