-- name: spend
-- Reserve what tries may cost and count what they have cost, in the order of the function's arguments.
select short
from perdure.spend(
  true, :kind, :run, :fence, :super_step, :key, :attempt, :usd, :tokens, :steps, :us, :known, :count, :position,
  :budgets, :over
)

-- name: ask_about_budgets
-- Say which budgets questions are about, in the order of the function's arguments.
select perdure.ask_about_budgets(:run, :super_step, :key, :budget, :rev)

-- name: set_budget
-- Set the limits of the budget of this name; its id.
select perdure.set_budget(:id, :name, :limits, :by, :if_rev)

-- name: get_budgets
-- These budgets, by id; the columns are those of `budgets.BudgetRow`.
select id, name, limits, spent, reserved, rev, created_at, updated_at, by
from perdure.accounts
where id = any(:budgets)
order by id

-- name: budgets
-- A page of budgets, by name.
select id, name, limits, spent, reserved, rev, created_at, updated_at, by
from perdure.accounts
where name > :after
  and (:prefix::text is null or name >= :prefix)
  and (:prefix::text is null or starts_with(name, :prefix))
order by name
limit :limit
