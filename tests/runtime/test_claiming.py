"""A worker's slots: none idle while work waits, none lost with an answer, none kept from the innocent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import App, Retry, step
from perdure.core.changes import Change, CommitOutcome, RequeueRun
from perdure.core.endings import Ending
from perdure.core.records import Claimed
from perdure.core.requests import ClaimRequest, NewWorker
from perdure.errors import StoreUnavailable
from perdure.runtime import tenure
from perdure.runtime.execution import Execution
from perdure.runtime.settings import deployment_name
from perdure.store.memory import MemoryStore
from tests.runtime.world import fresh_app, until, working


def test_a_slot_that_comes_free_is_filled_though_most_are_taken() -> None:
    app = fresh_app()
    gates = [asyncio.Event() for _ in range(9)]

    @app.agent
    async def wait(n: int) -> int:
        await gates[n].wait()
        return n

    async def main() -> int:
        async with working(app, concurrency=8, grace_s=0.05):
            handles = [await app.start(wait, n) for n in range(9)]
            gates[0].set()
            gates[8].set()
            await handles[0].result(timeout=20)
            return await handles[8].result(timeout=20)

    assert asyncio.run(main()) == 8


class Unheard(MemoryStore):
    """A store whose answer to the first hand-back is lost, once the run has been claimed again."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[int] = []
        self.reclaimed = asyncio.Event()

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        outcome = await super().commit(worker, changes)
        if not self.lost and any(isinstance(change, RequeueRun) for change in changes):
            self.lost.append(worker)
            await self.reclaimed.wait()
            raise StoreUnavailable("connection lost")
        return outcome

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await super().claim(request)
        if claimed and self.lost:
            self.reclaimed.set()
        return claimed

    def clone(self) -> Unheard:
        store = Unheard()
        store._data = self._data
        return store


class UnheardTwice(Unheard):
    """The same, and the answer to the claim is lost too; what it took is given back before anything is sent again."""

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await MemoryStore.claim(self, request)
        if claimed and self.lost and not self.reclaimed.is_set():
            raise StoreUnavailable("connection lost")
        return claimed

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        given_back = await super().give_back(worker, keep=keep, ticket=ticket)
        self.reclaimed.set()
        return given_back

    def clone(self) -> UnheardTwice:
        store = UnheardTwice()
        store._data = self._data
        return store


@pytest.mark.parametrize("store", [Unheard, UnheardTwice])
def test_a_lost_answer_to_a_hand_back_does_not_end_the_next_execution_of_the_run(store: type[Unheard]) -> None:
    app = App("test", store="memory://")
    app._store = store()
    calls: list[int] = []

    @app.agent(retry=Retry(attempts=3, delay_s=0.001))
    async def agent() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("once")
        return "done"

    async def main() -> str:
        async with working(app):
            return await (await app.start(agent)).result(timeout=20)

    assert asyncio.run(main()) == "done"
    assert len(calls) == 2


def test_a_suspect_that_has_recorded_something_makes_room_for_the_next() -> None:
    app = fresh_app()
    everybody = asyncio.Event()
    in_hand: list[int] = []

    @step
    async def quick() -> int:
        return 1

    @app.agent
    async def agent() -> str:
        in_hand.append(await quick())
        if len(in_hand) == 10:
            everybody.set()
        await everybody.wait()
        return "done"

    async def crash(store: Any) -> None:
        worker = await store.reserve_ids(1)
        await store.register(NewWorker(worker, "crash", "host", 1, deployment_name(), 10_000_000))
        await store.claim(ClaimRequest(worker, ("agent",), ("default",), deployment_name(), 100, 100))
        await store.take_over([worker], recoveries_max=5)

    async def main() -> list[str]:
        async with app:
            handles = [await app.start(agent) for _ in range(10)]
            for _ in range(3):
                await crash((await app._client()).store)
            async with app.worker():
                return [await handle.result(timeout=20) for handle in handles]

    assert asyncio.run(main()) == ["done"] * 10


class Away(MemoryStore):
    """A store that goes away and stays away."""

    away = False

    async def retire(self, worker: int) -> int:
        if Away.away:
            raise StoreUnavailable("away")
        return await super().retire(worker)

    def clone(self) -> Away:
        store = Away()
        store._data = self._data
        return store


def test_a_worker_can_be_stopped_while_its_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure, "HAND_BACK_S", 0.05)
    monkeypatch.setattr(Away, "away", False)
    app = App("test", store="memory://")
    app._store = Away()

    @app.agent
    async def agent() -> str:
        return "done"

    async def main() -> bool:
        async with app, app.worker(grace_s=0.05) as worker:

            async def alive() -> bool:
                return worker.id is not None

            await until(alive, "the worker is at work")
            Away.away = True
            worker.stop()
            async with asyncio.timeout(20):
                await worker.stopped()
            return worker.id is None

    assert asyncio.run(main())


class Late(MemoryStore):
    """A store to which the first claim comes too late: its sender has given up and has had everything given back."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[ClaimRequest] = []
        self.took: list[list[Claimed]] = []

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        if not self.late:
            self.late.append(request)
            raise StoreUnavailable("connection lost")
        return await super().claim(request)

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        given_back = await super().give_back(worker, keep=keep, ticket=ticket)
        self.took.append(await super().claim(self.late[0]))
        return given_back

    def clone(self) -> Late:
        store = Late()
        store._data, store.late, store.took = self._data, self.late, self.took
        return store


def test_a_claim_that_comes_after_the_give_back_takes_nothing() -> None:
    app = App("test", store="memory://")
    store = app._store = Late()

    @app.agent
    async def agent() -> str:
        return "done"

    async def main() -> tuple[str, Any]:
        async with app:
            handle = await app.start(agent)
            async with app.worker(lease_s=60.0, poll_s=0.05):
                return await handle.result(timeout=20), await handle.status()

    result, info = asyncio.run(main())
    assert result == "done"
    assert store.took == [[]]
    assert info.attempt == 1, "what nobody executes would wait for the end of the lease"


class Asked(MemoryStore):
    """A store that tells when it is asked to give back, and does not answer until something has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        given_back = await super().give_back(worker, keep=keep, ticket=ticket)
        self.asked.set()
        await self.may_answer.wait()
        return given_back

    def clone(self) -> Asked:
        store = Asked()
        store._data, store.asked, store.may_answer = self._data, self.asked, self.may_answer
        return store


def test_a_run_that_breaks_off_while_others_are_given_back_is_given_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("test", store="memory://")
    store = Asked()
    app.use_store(store)
    whole = Execution.run

    async def run(execution: Execution) -> Ending:
        if execution.claimed.attempt > 1:
            return await whole(execution)
        if execution.claimed.agent == "second":
            await store.asked.wait()
            asyncio.get_running_loop().call_soon(store.may_answer.set)
        raise RuntimeError("broken off")

    monkeypatch.setattr(Execution, "run", run)

    @app.agent
    async def first() -> str:
        return "done"

    @app.agent
    async def second() -> str:
        return "done"

    async def main() -> list[str]:
        async with app:
            handles = [await app.start(agent) for agent in (first, second)]
            async with app.worker(lease_s=60.0, poll_s=0.05, grace_s=5.0):
                return [await handle.result(timeout=5) for handle in handles]

    assert asyncio.run(main()) == ["done", "done"]
