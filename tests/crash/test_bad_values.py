"""What agents and callers hand over and nobody can keep: refused where it happened; nobody else suffers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import App
from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome, EndRun
from perdure.core.limits import MIB
from perdure.core.records import RunState
from perdure.errors import NotSerializable, PayloadTooLarge, PerdureError, RunFailed, RunHeld, UnknownAgent, UsageError
from perdure.runtime.settings import worker_settings
from perdure.runtime.worker import Worker
from perdure.store.protocol import Store
from tests.support.agents import ODD_VALUES, OddError, app_on
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import all_runs

BIG = "x" * (100 * MIB)

BAD_STARTS: list[tuple[Any, type[PerdureError], str]] = [
    (lambda app: app.start("singel", "tea"), UnknownAgent, "registered are"),
    (lambda app: app.start("single", object()), NotSerializable, "text"),
    (lambda app: app.start("single", "a\ud800b"), NotSerializable, "surrogate"),
    (lambda app: app.start("single", 7), NotSerializable, "text"),
    (lambda app: app.start("single"), UsageError, "text"),
    (lambda app: app.start("single", "tea", milk=True), UsageError, "milk"),
    (lambda app: app.start("single", BIG), PayloadTooLarge, "64"),
    (lambda app: app.start("single", "tea", thread_id="t" * 10_000), UsageError, "512"),
    (lambda app: app.start("single", "tea", thread_id="a\0b"), UsageError, "NUL"),
    (lambda app: app.start("single", "tea", thread_id=""), UsageError, "empty"),
    (lambda app: app.start("single", "tea", key="k" * 10_000), UsageError, "512"),
    (lambda app: app.start("single", "tea", delay=-1), UsageError, "-1"),
    (lambda app: app.start("single", "tea", delay="soon"), UsageError, "soon"),
    (lambda app: app.start("single", "tea", if_busy="wait"), UsageError, "enqueue"),
    (lambda app: app.start("single", "tea", priority=10**9), UsageError, "priority"),
    (lambda app: app.start("single", "tea", tags=["a\0b"]), UsageError, "NUL"),
    (lambda app: app.start("single", "tea", queue="🦜" * 2000), UsageError, "128"),
    (lambda app: app.run_info("42"), UsageError, "r42"),
    (lambda app: app.run_info("r42"), PerdureError, "runs list"),
    (lambda app: app.retry("r42"), PerdureError, "runs list"),
    (lambda app: app.release("r99999999999999999999"), UsageError, "r42"),
    (lambda app: app.runs(limit=0), UsageError, "1000"),
    (lambda app: app.runs(state="done"), UsageError, "completed"),
    (lambda app: app.thread("nobody").info(), PerdureError, "threads list"),
    (lambda app: app.handle("r1").result(timeout=-1), UsageError, "-1"),
]


def test_bad_input_is_refused_with_its_remedy_and_writes_nothing(store_url: str) -> None:
    async def main() -> None:
        async with app_on(store_url) as app:
            for number, (call, error, remedy) in enumerate(BAD_STARTS):
                with pytest.raises(error, match=f"(?i){remedy}") as caught:
                    await call(app)
                assert isinstance(caught.value, PerdureError), number
            assert await app.runs() == []
            # What was refused has not spoilt the connection, nor its neighbours in the same batch.
            good, bad = await asyncio.gather(
                app.start("single", "tea"), app.start("single", BIG), return_exceptions=True
            )
            assert isinstance(bad, PayloadTooLarge)
            async with app.worker(poll_s=0.05):
                assert await good.result(timeout=10) == "TEA"  # type: ignore[union-attr]

    asyncio.run(main())


def test_c15_an_exception_with_a_keyword_only_constructor_is_read_in_another_process(fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            fleet.hire().started()
            handle = await app.start("odd")
            with pytest.raises(RunFailed) as caught:
                await handle.result(timeout=10)
            assert "code 7 at the gate" in str(caught.value)
            error = (await handle.status()).error
            assert error is not None and OddError.__name__ in error.message
            assert "break_oddly" in error.traceback or "odd" in error.traceback
            step = [row for row in await handle.history() if row.key == "break_oddly"]
            assert [row.failed for row in step] == [True]

    asyncio.run(main())


def test_c16_odd_values_round_trip_or_fail_their_run_and_the_worker_goes_on(fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            worker = fleet.hire().started()
            ended: dict[tuple[str, bool], Any] = {}
            for what in ODD_VALUES:
                for as_error in (False, True):
                    handle = await app.start("giving", what, as_error)
                    try:
                        ended[what, as_error] = await handle.result(timeout=10)
                    except (RunFailed, RunHeld) as error:
                        ended[what, as_error] = error
                    begins = fleet.log.lines("begin", run=handle.run_id)
                    assert len(begins) == 1, "the worker does not loop"

            for (what, as_error), outcome in ended.items():
                if as_error:
                    assert isinstance(outcome, RunFailed), what
                    assert outcome.error.type.endswith(("StepFailed", "ValueError")), outcome.error
                elif isinstance(outcome, RunFailed):
                    assert outcome.error.type.endswith("NotSerializable"), outcome.error
                    assert "cannot be recorded at $" in outcome.error.message
                else:
                    assert repr(outcome) == repr(ODD_VALUES[what]), "by text, for a NaN equals nothing"
            assert isinstance(ended["object", False], RunFailed)
            assert worker.process.poll() is None and len(worker.identities) == 1
            assert {run.state for run in await all_runs((await app._client()).store)} <= {
                RunState.COMPLETED,
                RunState.FAILED,
            }

    asyncio.run(main())


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"], ids=ascii)
@pytest.mark.parametrize("where", ["tags", "tenant", "thread_id", "key", "queue"])
def test_c16_a_tag_or_a_name_that_no_store_keeps_is_refused_and_nothing_is_written(
    store_url: str, where: str, odd: str
) -> None:
    async def main() -> None:
        for url in (store_url, "memory://odd-names"):
            async with app_on(url) as app:
                with pytest.raises(UsageError, match=r"NUL|surrogate"):
                    await app.start("single", "tea", **{where: [odd] if where == "tags" else odd})
                assert await app.runs() == []

    asyncio.run(main())


def test_a_step_that_makes_100_mb_and_an_again_of_a_wrong_type_fail_their_runs_alone(fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            worker = fleet.hire().started()
            bulky, wrong, large = (
                await app.start("bulky", 100),
                await app.start("wrong_again", 1),
                await app.start("bulky", 40),
            )
            with pytest.raises(RunFailed, match="PayloadTooLarge"):
                await bulky.result(timeout=20)
            with pytest.raises(RunFailed, match="number"):
                await wrong.result(timeout=10)
            assert await large.result(timeout=30) == 40 * MIB
            assert await (await app.start("single", "and on")).result(timeout=10) == "AND ON"
            assert len(fleet.log.lines("begin", run=bulky.run_id)) == 1
            assert len(worker.identities) == 1

    asyncio.run(main())


class SpoiltStore:
    """A store in which one run's record cannot be stored: no database takes its digest."""

    def __init__(self, inner: Store, run: int) -> None:
        self._inner = inner
        self._run = run
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        self.batches.append(len(changes))
        return await self._inner.commit(worker, [self._spoil(change) for change in changes])

    def _spoil(self, change: Change) -> Change:
        if isinstance(change, AppendCheckpoint) and change.run == self._run:
            return msgspec.structs.replace(change, digest=1 << 70)
        return change


def test_c17_of_a_hundred_commits_in_one_batch_one_is_unstorable_and_fails_alone(
    store_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    async def main(app: App) -> None:
        async with app:
            client = await app._client()
            handles = await asyncio.gather(*(app.start("gated", str(gate)) for _ in range(100)))
            store = SpoiltStore(client.store, handles[37]._id)
            settings = worker_settings(poll_s=0.05)
            async with Worker(store, app.agents, settings=settings, on_ended=client.ended) as worker:  # type: ignore[arg-type]
                await becomes(lambda: _running(worker, 100), "all are in hand")
                gate.touch()
                results = await asyncio.gather(
                    *(handle.result(timeout=20) for handle in handles), return_exceptions=True
                )

            odd = results.pop(37)
            assert isinstance(odd, RunHeld) and odd.reason == "refused", odd
            assert set(results) == {"opened AFTER"}
            assert max(store.batches) > 10, "commits were grouped"

    asyncio.run(main(app_on(store_url)))


async def _running(worker: Worker, count: int) -> bool:
    return worker.running == count


def test_what_a_run_writes_after_a_refused_record_is_not_written_either(store_url: str) -> None:
    """The agent is ahead of its commits: its end is queued by the time that its first record is refused."""

    async def main(app: App) -> None:
        async with app:
            client = await app._client()
            handle = await app.start("single", "tea")

            class LateStore(SpoiltStore):
                async def commit(self, worker_id: int, changes: Sequence[Change]) -> CommitOutcome:
                    if not self.batches:
                        await becomes(lambda: _end_is_queued(worker), "the run's end waits behind its record")
                    return await super().commit(worker_id, changes)

            store = LateStore(client.store, handle._id)
            settings = worker_settings(poll_s=0.05)
            async with Worker(store, app.agents, settings=settings, on_ended=client.ended) as worker:  # type: ignore[arg-type]
                with pytest.raises(RunHeld, match="refused"):
                    await handle.result(timeout=10)
            assert [row.key for row in await handle.history() if row.key] == []

    asyncio.run(main(app_on(store_url)))


async def _end_is_queued(worker: Worker) -> bool:
    tenure = worker._tenure
    assert tenure is not None
    return any(isinstance(change, EndRun) for batch in tenure.committer._batches for change in batch.items)
