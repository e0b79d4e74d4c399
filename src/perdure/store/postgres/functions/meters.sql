-- Meters are filed once for their try and its fence; none where what they belong to was not written.
create or replace function perdure.record_meters(
  p_written boolean, m_run bigint[], m_super_step integer[], m_key text[], m_attempt integer[], m_fence bigint[],
  m_number integer[], m_name text[], m_quantity bigint[], m_attributes bytea[]
) returns void
language plpgsql volatile
as $$
begin
  if not p_written or cardinality(m_run) = 0 then
    return;
  end if;
  insert into perdure.meters (run, fence, quantity, at, super_step, attempt, number, key, name, attributes)
  select
    m.run, m.fence, m.quantity, n.now_us, m.super_step, m.attempt, m.number, m.key, m.name, m.attributes
  from unnest(m_run, m_super_step, m_key, m_attempt, m_fence, m_number, m_name, m_quantity, m_attributes)
    as m (run, super_step, key, attempt, fence, number, name, quantity, attributes)
  cross join (select perdure.now_us() as now_us) as n
  on conflict do nothing;
end
$$;
