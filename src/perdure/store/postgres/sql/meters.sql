-- name: record_meters
-- File meters, in the order of the function's arguments.
select perdure.record_meters(
  true, :run, :super_step, :key, :attempt, :fence, :number, :name, :quantity, :attributes
)

-- name: meters
-- A page of a run's meters; the columns are those of `meters.MeterRow`.
select run, super_step, key, attempt, fence, number, name, quantity, attributes, at
from perdure.meters
where run = :run
order by super_step, key, attempt, fence, number
limit :limit
offset :offset

-- name: usage_by_name
-- Sums of meters by tenant or by agent; the columns are those of `meters.UsageRow`. (What is null is left out of the
-- plan, which is made for each call.)
select u.used_by, u.name, sum(u.quantity) as quantity, count(*) as entries
from (
  select case when :by = 'tenant' then coalesce(r.tenant, '') else r.agent end as used_by, m.name, m.quantity
  from perdure.meters m
  join perdure.runs r on r.id = m.run
  where (:run::bigint is null or m.run = :run)
    and (:name::text is null or m.name = :name)
    and (:tenant::text is null or r.tenant = :tenant)
    and (:agent::text is null or r.agent = :agent)
    and (:since::bigint is null or m.at >= :since)
    and (:until::bigint is null or m.at < :until)
    and (:after_fence::bigint is null or m.fence > :after_fence)
    and (:fence::bigint is null or m.fence <= :fence)
) u
where :after_group::text is null
  or (u.used_by, u.name) > (:after_group, :after_name::text)
group by u.used_by, u.name
order by u.used_by, u.name
limit :limit

-- name: usage_by_number
-- The same by run or by day.
select u.used_by, u.name, sum(u.quantity) as quantity, count(*) as entries
from (
  select case when :by = 'run' then m.run else m.at / 86400000000 end as used_by, m.name, m.quantity
  from perdure.meters m
  join perdure.runs r on r.id = m.run
  where (:run::bigint is null or m.run = :run)
    and (:name::text is null or m.name = :name)
    and (:tenant::text is null or r.tenant = :tenant)
    and (:agent::text is null or r.agent = :agent)
    and (:since::bigint is null or m.at >= :since)
    and (:until::bigint is null or m.at < :until)
    and (:after_fence::bigint is null or m.fence > :after_fence)
    and (:fence::bigint is null or m.fence <= :fence)
) u
where :after_group::bigint is null
  or (u.used_by, u.name) > (:after_group, :after_name::text)
group by u.used_by, u.name
order by u.used_by, u.name
limit :limit
