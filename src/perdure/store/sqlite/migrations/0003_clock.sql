-- The store's time at the last write, and what the machine's clocks said then: from it any process tells the time.

create table perdure.clock (
  at integer not null,
  wall integer not null,
  ticks integer not null,
  counter text not null
) strict;

insert into perdure.clock values (0, 0, 0, '');
