-- name: insert_meters
-- File what tries have used; what is there already is a batch sent again.
insert into perdure.meters (run, super_step, key, attempt, fence, number, name, quantity, attributes, at)
select *
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
where column1 is not null
on conflict (run, super_step, key, attempt, fence, number) do nothing

-- name: meters
-- A page of a run's meters, in the order of their places; the columns are those of `meters.MeterRow`.
select run, super_step, key, attempt, fence, number, name, quantity, attributes, at
from perdure.meters
where run = :run
order by super_step, key, attempt, fence, number
limit :limit offset :offset

-- name: usage
-- A page of sums of what was used in a span of time, by group and name, as a JSON array. (Quantities are summed in two
-- parts, of which neither can be too large.)
select json_group_array(json_array(part, name, whole, rest, entries))
from (
  select
    case :by
      when 'tenant' then ifnull(r.tenant, '') when 'agent' then r.agent when 'run' then m.run
      else m.at / 86400000000
    end as part,
    m.name,
    sum(m.quantity / 1000000000) as whole, sum(m.quantity % 1000000000) as rest, count(*) as entries
  from perdure.meters m
  join perdure.runs r on r.id = m.run
  where m.at >= :since
    and m.at < :until
    and m.fence > :after_fence
    and m.fence <= :fence
    and (:name is null or m.name = :name)
    and (:tenant is null or r.tenant = :tenant)
    and (:agent is null or r.agent = :agent)
  group by 1, 2
  having :after_part is null or (part, m.name) > (:after_part, :after_name)
  order by 1, 2
  limit :limit
)

-- name: usage_of_run
-- The same of one run, along its own index.
select json_group_array(json_array(part, name, whole, rest, entries))
from (
  select
    case :by
      when 'tenant' then ifnull(r.tenant, '') when 'agent' then r.agent when 'run' then m.run
      else m.at / 86400000000
    end as part,
    m.name,
    sum(m.quantity / 1000000000) as whole, sum(m.quantity % 1000000000) as rest, count(*) as entries
  from perdure.meters m
  join perdure.runs r on r.id = m.run
  where m.run = :run
    and m.at >= :since
    and m.at < :until
    and m.fence > :after_fence
    and m.fence <= :fence
    and (:name is null or m.name = :name)
    and (:tenant is null or r.tenant = :tenant)
    and (:agent is null or r.agent = :agent)
  group by 1, 2
  having :after_part is null or (part, m.name) > (:after_part, :after_name)
  order by 1, 2
  limit :limit
)
