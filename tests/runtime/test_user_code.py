"""User code that breaks where perdure calls it: each ends its run visibly, and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, ClassVar

import pytest

from perdure import Again, Retry, RunFailed, RunHeld, telemetry
from perdure.runtime import tasks
from tests.runtime.world import fresh_app, result_of, working


class Owned(dict[str, Any]):
    """A state that cannot be made from nothing."""

    def __init__(self, owner: str = "") -> None:
        if not owner:
            raise ValueError("an owner is required")
        super().__init__(owner=owner)


@dataclasses.dataclass
class Picky:
    """A state whose constructor can be told to refuse what it once made."""

    items: int = 0
    refuses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.refuses and self.items:
            raise KeyError("items")


QUICK = Retry(attempts=3, delay_s=0.001, jitter=0)


def test_a_state_whose_constructor_fails_fails_the_run() -> None:
    app = fresh_app()

    @app.agent
    async def agent(*, state: Owned) -> str:
        return "never"

    with pytest.raises(RunFailed, match="an owner is required"):
        result_of(app, agent)


def test_a_recorded_state_that_breaks_its_own_constructor_holds_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()

    @app.agent
    async def agent(*, state: Picky) -> int:
        state.items += 1
        return state.items

    async def main() -> None:
        async with working(app):
            assert await (await app.start(agent, thread_id="t")).result(timeout=20) == 1
            monkeypatch.setattr(Picky, "refuses", True)
            with pytest.raises(RunHeld, match="does not load: KeyError"):
                await (await app.start(agent, thread_id="t")).result(timeout=20)

    asyncio.run(main())


def test_a_state_that_breaks_while_it_is_recorded_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picky, "refuses", True)
    app = fresh_app()

    @app.agent
    async def agent(*, state: Picky) -> str:
        state.items = 1
        return "done"

    with pytest.raises(RunFailed, match="KeyError"):
        result_of(app, agent)


def test_a_retry_on_that_breaks_makes_the_error_final() -> None:
    app = fresh_app()
    calls = 0

    def server_error(error: BaseException) -> bool:
        return bool(error.response.status >= 500)  # type: ignore[attr-defined]

    @app.agent(retry=Retry(attempts=5, delay_s=0.001, retry_on=server_error))
    async def agent() -> str:
        nonlocal calls
        calls += 1
        raise ValueError("no response on me")

    with pytest.raises(RunFailed, match="no response on me") as caught:
        result_of(app, agent)
    assert calls == 1
    assert "retry_on broke" in caught.value.error.traceback


def test_an_agent_that_swallows_its_cancellation_does_not_keep_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    stuck: list[dict[str, Any]] = []
    began, gate = asyncio.Event(), asyncio.Event()

    @app.agent
    async def stubborn() -> str:
        began.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    async def main() -> str:
        unsubscribe = telemetry.subscribe(lambda event, of: stuck.append(of) if event == "run.stuck" else None)
        try:
            async with app:
                async with app.worker(grace_s=0.01), asyncio.timeout(20):
                    handle = await app.start(stubborn)
                    await began.wait()
                state = (await handle.status()).state
                gate.set()
                return state
        finally:
            unsubscribe()

    assert asyncio.run(main()) == "queued"
    assert len(stuck) == 1


def test_what_cleans_up_after_a_cancellation_is_not_cancelled_again() -> None:
    app = fresh_app()
    cleaned: list[str] = []
    began = asyncio.Event()

    @app.agent
    async def tidy() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cleaned.append("root")
        return "never"

    async def main() -> None:
        async with working(app, grace_s=0.01):
            await app.start(tidy)
            await began.wait()

    asyncio.run(main())
    assert cleaned == ["root"]


def test_an_app_that_an_agent_opens_outlives_the_agent() -> None:
    app, other = fresh_app(), fresh_app()

    @other.agent
    async def noop() -> None:
        return None

    @app.agent
    async def opener() -> str:
        return (await other.start(noop)).run_id

    async def main() -> None:
        async with working(app):
            await (await app.start(opener)).result(timeout=20)
            async with asyncio.timeout(20):
                await other.start(noop)
            await other.close()

    asyncio.run(main())


def test_the_tries_of_a_run_are_counted_for_each_super_step() -> None:
    app = fresh_app()
    tries = [0, 0]

    @app.agent(retry=QUICK)
    async def agent(at: int = 0) -> int | Again:
        tries[at] += 1
        if tries[at] < 3:
            raise ConnectionError("not yet")
        return Again(1) if at == 0 else sum(tries)

    assert result_of(app, agent) == 6
