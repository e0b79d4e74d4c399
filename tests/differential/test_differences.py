"""Differences are found, told and made short: shown on stores that are wrong on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from perdure.core.changes import CommitOutcome, EndRun
from perdure.core.deliveries import Settlement
from perdure.core.meters import UNIT, UsageFilter, UsageRow
from perdure.core.records import Checkpoint, Outcome, Run, TakenOver
from perdure.core.requests import Bounce, ClaimRequest, StartOutcome, StartRun
from perdure.errors import NotFound
from perdure.store.memory import MemoryStore
from perdure.store.memory.tables import Tables
from perdure.store.protocol import Store
from perdure.testing.differential import STORE, Difference, MemoryGround, compare, differ, shortened, shrink
from perdure.testing.differential.__main__ import main as command
from perdure.testing.differential.__main__ import report
from perdure.testing.differential.answers import parting, shown
from perdure.testing.differential.operations import UNIT_S, Call

SEEDS_MAX = 100
SHORT = 17
"""Operations that are enough to show any of these mistakes: five workers that die of a run, before it is released."""


class ForgetsTheRelease(MemoryStore):
    """Answers as if the run had stayed held."""

    async def release(self, run: int) -> Run | None:
        before = await self.get_runs([run])
        await super().release(run)
        return before[0] if before else None


class KeepsTheFence(MemoryStore):
    """Gives runs back under the fence they had."""

    def _give_back(self, tables: Tables, runs: Iterable[int]) -> int:
        given = sorted(runs)
        for run in given:
            tables.move(run, state="queued", worker=None)
        return len(given)


class ForgivesStrikes(MemoryStore):
    """Takes every dead claim for progress."""

    async def take_over(self, suspects: Iterable[int], *, recoveries_max: int) -> list[TakenOver]:
        taken = await super().take_over(suspects, recoveries_max=recoveries_max)
        for run in [run for each in taken for run in each.requeued]:
            self._data.move(run, strikes=0)
        return taken


class IgnoresPriority(MemoryStore):
    """Claims the oldest, whatever its priority."""

    def _choose(self, tables: Tables, request: ClaimRequest, now: int) -> list[Run]:
        rows = super()._choose(tables, msgspec.structs.replace(request, limit=100), now)
        return sorted(rows, key=lambda run: (run.ready_at, run.id))[: max(0, request.limit)]


class OverwritesRecords(MemoryStore):
    """Never refuses a record that exists under another fence: it says nothing."""

    async def commit(self, worker: int, changes: Sequence[Any]) -> CommitOutcome:
        outcome = await super().commit(worker, changes)
        return msgspec.structs.replace(outcome, refused={})


class LosesTheLastEnd(MemoryStore):
    """Leaves the result of a failed run out."""

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        return [each for each in await super().outcomes(runs) if not each.failed]


class MissesTheLastPage(MemoryStore):
    """Counts a page from one too far."""

    async def checkpoints(self, run: int, **named: Any) -> list[Checkpoint]:
        after = named.pop("after", None)
        return await super().checkpoints(run, after=None if after is None else (after[0], after[1] + 1), **named)


class RejectsJoins(MemoryStore):
    """Takes `join` for `reject`, and raises."""

    async def start(self, asked: Sequence[StartRun]) -> list[StartOutcome]:
        outcomes = await super().start(asked)
        for ask, outcome in zip(asked, outcomes, strict=True):
            if ask.if_busy == "join" and getattr(outcome, "created", True) is False:
                raise NotFound("no such thread", thread_id=ask.thread_id)
        return outcomes


class SettlesForOthers(MemoryStore):
    """Believes whoever says what came of a delivery."""

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        for each in settlements:
            rows = await self.get_deliveries([each.delivery])
            owner = rows[0].worker if rows and rows[0].worker is not None else worker
            await super().settle_deliveries(owner, [each])


class ForgetsTheDelay(MemoryStore):
    """Tries a delivery that failed again at once."""

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        await super().settle_deliveries(worker, [msgspec.structs.replace(each, delay_us=0) for each in settlements])


class LendsWithoutEnd(MemoryStore):
    """Says that it has reserved what it has not."""

    async def commit(self, worker: int, changes: Sequence[Any]) -> CommitOutcome:
        outcome = await super().commit(worker, changes)
        bounced = {place: why for place, why in outcome.bounced.items() if why is not Bounce.BUDGET}
        return msgspec.structs.replace(outcome, bounced=bounced)


class RoundsUsage(MemoryStore):
    """Loses the billionths."""

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        rows = await super().usage(where)
        return [msgspec.structs.replace(row, quantity=row.quantity // UNIT * UNIT) for row in rows]


WRONG: list[Callable[..., MemoryStore]] = [
    ForgetsTheRelease,
    KeepsTheFence,
    ForgivesStrikes,
    IgnoresPriority,
    OverwritesRecords,
    LosesTheLastEnd,
    MissesTheLastPage,
    RejectsJoins,
    SettlesForOthers,
    ForgetsTheDelay,
    LendsWithoutEnd,
    RoundsUsage,
]


class WrongGround(MemoryGround):
    """Memory with a mistake, in its clones too."""

    name = "wrong"

    def __init__(self, kind: Callable[..., MemoryStore]) -> None:
        super().__init__()
        self._kind = kind

    def _store(self) -> Store:
        return self._kind(now_us=self._clock.now_us)


def first_difference(kind: Callable[..., MemoryStore]) -> tuple[int, Difference[Any], Difference[Any]]:
    """The first seed that shows the mistake, how, and how in short."""

    async def main() -> tuple[int, Difference[Any], Difference[Any]]:
        grounds = [MemoryGround(), WrongGround(kind)]
        for seed in range(SEEDS_MAX):
            if found := await differ(STORE, seed, grounds):
                return seed, found, await shortened(STORE, found, grounds)
        pytest.fail(f"{SEEDS_MAX} seeds do not show what is wrong with {kind}")

    return asyncio.run(main())


@pytest.mark.parametrize("kind", WRONG)
def test_a_store_that_is_wrong_is_found_and_the_program_made_short(kind: Callable[..., MemoryStore]) -> None:
    _, found, short = first_difference(kind)

    assert len(short.program) <= min(SHORT, len(found.program))
    assert short.number == len(short.program) - 1
    assert short.answers["memory"] != short.answers["wrong"]


def test_a_short_program_still_tells_the_stores_apart() -> None:
    _, _, short = first_difference(KeepsTheFence)

    async def again() -> Difference[Any] | None:
        return await compare(short.program, STORE.on([MemoryGround(), WrongGround(KeepsTheFence)]))

    assert asyncio.run(again()) == short


def test_a_report_says_who_answered_what_and_how_to_see_it_again() -> None:
    seed, found, short = first_difference(LosesTheLastEnd)

    text = report(seed, found, short, f"--seeds 1 --first {seed}")

    assert f"seed {seed}: the stores differ at operation {found.number} of {len(found.program)}" in text
    assert f"\nagain: python -m perdure.testing.differential --seeds 1 --first {seed}\n" in text
    assert "memory answered" in text and "wrong answered" in text
    assert f"of {len(short.program)} operation(s)" in text


def test_an_error_is_an_answer_like_any_other() -> None:
    _, found, _ = first_difference(RejectsJoins)

    raised = found.answers["wrong"]
    assert raised == {"raised": "NotFound", "thread_id": raised["thread_id"]}


def test_shrinking_keeps_what_the_difference_needs_and_nothing_else() -> None:
    async def total(program: Sequence[int]) -> list[int]:
        return [sum(program[: n + 1]) for n in range(len(program))]

    async def wrong(program: Sequence[int]) -> list[int]:
        """Cannot count past ten while it has seen a seven."""
        return [min(found, 10) if 7 in program[: n + 1] else found for n, found in enumerate(await total(program))]

    async def main() -> Sequence[int]:
        stores = {"right": total, "wrong": wrong}
        found = await compare([1, 2, 7, 0, 3, 1, 9, 4], stores)
        assert found is not None
        return (await shrink(found, stores, lighter=lambda n: [n - 1] if n else [])).program

    short = asyncio.run(main())

    assert short == [1, 7, 3]


def test_shrinking_takes_starts_and_changes_out_of_a_call() -> None:
    call = Call("commit", (1, (EndRun, StartRun)))

    assert [each.args for each in call.lighter()] == [(1, (StartRun,)), (1, (EndRun,))]
    assert Call("claim", (1,)).lighter() == []


def test_answers_are_compared_without_what_differs_by_right() -> None:
    async def main() -> tuple[Any, Any]:
        ground = MemoryGround()
        async with ground.fresh() as store:
            await store.start([ask(7)])
            (early,) = await store.get_runs([7])
            before = shown(early, await store.now_us())
            await ground.advance_s(store, 2 * UNIT_S)
            return before, shown(early, await store.now_us())

    before, after = asyncio.run(main())

    assert (before["created_at"], before["started_at"]) == ("stamped", None)
    assert parting(before, after) == (".ready_at", "1 units from now", "-1 units from now")


def ask(run: int) -> StartRun:
    at = {"id": run, "thread": run + 1, "thread_id": "t", "agent": "a", "queue": "q", "priority": 0, "key": None}
    return msgspec.convert(
        at | {"delay_us": UNIT_S * 1_000_000, "digest": b"", "payload": b"", "if_busy": "enqueue"}, StartRun
    )


def test_data_part_at_the_deepest_place_where_they_are_comparable() -> None:
    assert parting({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == (".a[1].b", 2, 3)
    assert parting([1, 2], [1]) == ("", [1, 2], [1])
    with contextlib.suppress(AssertionError):
        parting([1], [1])
        pytest.fail("equal data part nowhere")


def test_the_command_tells_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--seeds", "3", "--first", "5"]) == 0
    assert "3 seeds of 60 operations (store): no difference" in capsys.readouterr().out

    assert command(["--seeds", "2", "--level", "app"]) == 0
    assert "2 seeds of 16 operations (app): no difference" in capsys.readouterr().out


def test_the_command_names_the_stores_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--stores", "memory,oracle"]) == 2
    assert "'oracle' names no store to compare" in capsys.readouterr().err
