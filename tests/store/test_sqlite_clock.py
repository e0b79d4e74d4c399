"""The clock of a SQLite file, on a machine whose clock is set back, set forward, and started again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import WorkerState
from perdure.store.protocol import Store
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.clock import STEP_US, Mark, machine_clock, moment
from perdure.testing.conformance import Bench
from perdure.testing.conformance.harness import LEASE_S, Harness, requeue

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_700_000_000 * SECOND
YEARS = 30 * 365 * 24 * HOUR


@dataclass
class Machine:
    """A machine's clocks, by hand."""

    wall: int = START
    ticks: int = 5 * HOUR
    boots: itertools.count[int] = field(default_factory=itertools.count)
    boot: int = 0

    def passes(self, us: int) -> None:
        self.wall += us
        self.ticks += us

    def steps(self, us: int) -> None:
        """Somebody sets the clock."""
        self.wall += us

    def sleeps(self, us: int) -> None:
        """Its lid is closed."""
        self.wall += us

    def reads(self) -> tuple[int, int, str]:
        return self.wall, self.ticks, f"boot {self.boot}"


class Plain(Harness):
    """Enough of a harness for a bench."""


@asynccontextmanager
async def benches(path: Path, machine: Machine, count: int = 1) -> AsyncIterator[list[Bench]]:
    """That many processes on one file."""
    stores = [SQLiteStore(path, now_us=lambda: machine.wall, ticks_us=lambda: machine.ticks) for _ in range(count)]
    for store in stores:
        await store.open()
    try:
        yield [Bench(Plain(), store) for store in stores]
    finally:
        for store in stores:
            await store.close()


# -- set back --------------------------------------------------------------------------------------------------------


def test_c10_runs_that_are_queued_are_claimed_after_the_clock_was_set_back(tmp_path: Path) -> None:
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine, 2) as (one, other):
            worker = await one.worker()
            first, delayed = await one.start("a"), await one.start("b", delay_us=60 * SECOND)
            machine.steps(-2 * HOUR)

            (claimed,) = await one.claim(worker)
            assert claimed.run == first
            await one.commit(worker, requeue(claimed))
            assert [each.run for each in await one.claim(worker)] == [first], "and so is what was queued since then"
            machine.passes(59 * SECOND)
            assert await other.claim(await other.worker()) == [], "a delay takes its time"
            machine.passes(8 * SECOND)
            assert [each.run for each in await one.claim(worker)] == [delayed], "and a tenth more at most"

    asyncio.run(main())


def test_c10_a_lease_runs_out_in_its_time_after_the_clock_was_set_back(tmp_path: Path) -> None:
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine, 2) as (one, other):
            worker = await one.worker()
            machine.passes(SECOND)
            machine.steps(-2 * HOUR)
            machine.passes(int((LEASE_S - 5) * SECOND))
            assert await other.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            machine.passes(int((5 + 0.1 * LEASE_S) * SECOND))
            (taken,) = await other.store.take_over([], recoveries_max=RECOVERIES_MAX)
            assert taken.worker == worker

    asyncio.run(main())


def test_a_clock_that_was_set_back_is_caught_up_with_at_nine_tenths_of_the_pace(tmp_path: Path) -> None:
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine) as (bench,):
            await bench.store.reserve_ids(1)
            machine.steps(-HOUR)
            assert await bench.store.now_us() == START
            await bench.store.reserve_ids(1)
            machine.passes(5 * HOUR)
            assert await bench.store.now_us() == START + 5 * HOUR - HOUR // 2
            checks = {what: (well, found) for what, well, found in await bench.store.diagnose()}
            well, found = checks["clock"]
            assert not well and found.startswith("1,800 s ahead of this machine's") and "in 5.0 h" in found
            await bench.store.reserve_ids(1)
            machine.passes(6 * HOUR)
            assert await bench.store.now_us() == machine.wall
            assert ("clock", True) in {(what, well) for what, well, _ in await bench.store.diagnose()}

    asyncio.run(main())


# -- set forward -----------------------------------------------------------------------------------------------------


def test_c10_a_clock_that_is_set_forward_ends_no_lease_and_no_lease_of_a_dead_worker_lasts_longer(
    tmp_path: Path,
) -> None:
    """A step forward is followed, and moves the leases on by itself: nobody was silent for that long."""
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine, 2) as (one, other):
            worker = await one.worker()
            due = await one.start("due", delay_us=300 * SECOND)
            machine.passes(10 * SECOND)
            machine.steps(600 * SECOND)
            assert await other.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            assert await other.store.now_us() == machine.wall, "it is followed"
            assert [each.run for each in await one.claim(worker)] == [due], "what waits for a time of day is due"
            machine.passes(int((LEASE_S - 11) * SECOND))
            assert await other.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            machine.passes(2 * SECOND)
            assert [each.worker for each in await other.store.take_over([], recoveries_max=RECOVERIES_MAX)] == [worker]

    asyncio.run(main())


def test_a_machine_that_slept_has_no_dead_workers_for_that(tmp_path: Path) -> None:
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine, 2) as (one, other):
            worker = await one.worker()
            machine.sleeps(8 * HOUR)
            assert await other.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            assert await one.store.renew(worker, int(LEASE_S * SECOND))
            assert (await one.worker_row(worker)).state is WorkerState.ALIVE

    asyncio.run(main())


def test_a_step_whose_leases_do_not_move_is_not_seen_twice(tmp_path: Path) -> None:
    """The first transaction after the step has nobody's lease to move, and leaves no mark; the lease of a worker that
    registers after it begins then."""
    machine = Machine()

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine) as (bench,):
            await bench.store.reserve_ids(1)
            machine.steps(HOUR)
            assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            worker = await bench.worker()
            ends = machine.wall + int(LEASE_S * SECOND)
            assert (await bench.worker_row(worker)).lease_until == ends
            assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
            assert (await bench.worker_row(worker)).lease_until == ends

    asyncio.run(main())


def test_a_look_that_finds_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    machine = Machine()
    log = tmp_path / "x.db-wal"

    async def main() -> None:
        async with benches(tmp_path / "x.db", machine) as (bench,):
            worker = await bench.worker()
            before = log.read_bytes()
            for _ in range(3):
                machine.passes(SECOND)
                assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
                assert await bench.claim(worker) == []
            assert log.read_bytes() == before

    asyncio.run(main())


# -- another boot, another machine -----------------------------------------------------------------------------------


def test_a_machine_that_starts_again_in_the_past_goes_on_from_where_the_file_is() -> None:
    mark = Mark(at=START, wall=START, ticks=90 * HOUR, counter="one boot")

    first = moment(mark, START - YEARS, 60 * SECOND, "another boot")
    second = moment(first.mark, START - YEARS + HOUR, 60 * SECOND + HOUR, "another boot")

    assert (first.now, first.stepped_us) == (START, 0)
    assert second.now == START + HOUR - HOUR // 10


def test_a_file_that_was_copied_to_a_machine_with_other_ticks_takes_its_time_from_the_wall_clock() -> None:
    mark = Mark(at=START, wall=START, ticks=0, counter="a laptop")

    assert moment(mark, START + SECOND, 1000 * HOUR, "a server").now == START + SECOND
    assert moment(mark, START + SECOND, 1000 * HOUR, "").now == START + SECOND


def test_all_processes_of_this_machine_count_by_the_same_ticks() -> None:
    clock = machine_clock()
    first, second = clock.read(), clock.read()

    assert first[2] == second[2] and first[1] <= second[1]


# -- anything --------------------------------------------------------------------------------------------------------

HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["passes", "passes", "passes", "steps", "boots", "writes", "reads"]),
        st.integers(-3 * HOUR, 3 * HOUR),
    ),
    max_size=40,
)


@given(HAPPENINGS)
def test_what_is_written_never_goes_back_and_keeps_its_pace_whatever_the_clocks_do(
    happenings: list[tuple[str, int]],
) -> None:
    machine = Machine()
    mark = moment(Mark(0, 0, 0, ""), *machine.reads()).mark
    passed = stepped = booted = 0
    for what, us in happenings:
        if what == "passes":
            machine.passes(abs(us))
            passed += abs(us)
        elif what == "steps":
            machine.steps(us)
            stepped += max(us, 0)
        elif what == "boots":
            machine.ticks, machine.boot = 0, machine.boot + 1
            booted += 1
        else:
            found = moment(mark, *machine.reads())
            assert found.now >= mark.at and found.now >= machine.wall, "never back, and never behind"
            assert found.stepped_us >= 0
            assert found.now <= START + passed + stepped, "never faster than time, but for steps that it follows"
            if not booted:
                assert found.now - mark.at >= (machine.ticks - mark.ticks) * 9 // 10, "nine tenths of the pace at least"
            mark = found.mark if what == "writes" else mark


def test_a_small_difference_between_two_readings_moves_no_lease() -> None:
    mark = Mark(at=START, wall=START, ticks=0, counter="b")

    assert moment(mark, START + SECOND + STEP_US - 1, SECOND, "b").stepped_us < STEP_US


def test_a_store_tells_the_time_of_its_file(tmp_path: Path) -> None:
    async def told(store: Store) -> tuple[int, int, int]:
        await store.open()
        try:
            wall = machine_clock().wall_us
            return wall(), await store.now_us(), wall()
        finally:
            await store.close()

    before, now, after = asyncio.run(told(SQLiteStore(tmp_path / "x.db")))
    assert before <= now <= after


@pytest.mark.parametrize("there", [True, False])
def test_a_system_that_does_not_name_its_boots_goes_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    from perdure.store.sqlite import clock

    (tmp_path / "boot_id").write_text("abc\n")
    monkeypatch.setattr(clock, "BOOT_ID", tmp_path / ("boot_id" if there else "nothing"))
    monkeypatch.setattr(clock, "TIME_NAMESPACE", tmp_path / "nothing")

    assert clock._boot() == ("abc" if there else "")
