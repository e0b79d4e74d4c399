"""What a run that was cancelled had called and did not do, by name; and what it had done, undone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.core.changes import IntendEffect
from perdure.core.failures import not_done
from tests.runtime.paying import run, states
from tests.runtime.world import fresh_app


def test_c36_what_was_called_and_never_dispatched_when_stop_was_pressed_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = fresh_app()
    in_flight, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @perdure.effect(undo=lambda number: done.append(f"{number} given back"))
    async def buy(number: int) -> int:
        in_flight.set()
        await go_on.wait()
        done.append(f"{number} bought")
        return number

    @app.agent
    async def agent() -> None:
        first = asyncio.create_task(buy(0))
        await in_flight.wait()
        await asyncio.gather(first, *(buy(number) for number in range(1, 5)))

    async def main() -> None:
        store = (await app._client()).store
        commit, intents = store.commit, 0

        async def pressed(worker: int, changes: Any) -> Any:
            nonlocal intents
            asked = [each for each in changes if isinstance(each, IntendEffect) and not each.undo]
            intents += len(asked)
            if intents > 1 and asked:
                await app.cancel(f"r{asked[0].run}", reason="stop")
                go_on.set()
            return await commit(worker, changes)

        monkeypatch.setattr(type(store), "commit", lambda self, worker, changes: pressed(worker, changes))
        handle = await app.start(agent)
        with pytest.raises(perdure.RunCancelled, match=r"cancelled: stop; not done: 2/buy, 3/buy, 4/buy, 5/buy$"):
            await handle.result(timeout=20)
        info = await handle.status()
        assert not_done(info.error) == "2/buy, 3/buy, 4/buy, 5/buy"
        assert info.error is not None and info.error.message == "stop"
        assert await states(app) == ["undone"]

    run(app, main)
    assert done == ["0 bought", "0 given back"]


def test_a_run_that_is_cancelled_with_nothing_left_to_do_lists_nothing() -> None:
    app = fresh_app()
    reached = asyncio.Event()

    @perdure.effect
    async def buy(number: int) -> int:
        return number

    @app.agent
    async def agent() -> None:
        await buy(0)
        reached.set()
        await perdure.sleep(3600)

    async def main() -> None:
        handle = await app.start(agent)
        await reached.wait()
        await handle.cancel("stop")
        with pytest.raises(perdure.RunCancelled, match=r"cancelled: stop$"):
            await handle.result(timeout=20)
        assert await states(app) == ["done"]

    run(app, main)


def test_one_that_was_put_off_when_its_run_ran_out_of_time_is_listed_too() -> None:
    app = fresh_app()

    @perdure.effect
    async def slow(number: int) -> int:
        await asyncio.sleep(0.3)  # longer than the run may take
        return number

    @app.agent
    async def agent() -> None:
        for number in range(3):
            await slow(number)

    async def main() -> None:
        handle = await app.start(agent, deadline=0.1)
        with pytest.raises(perdure.RunFailed, match=r"before its deadline; not done: slow#2"):
            await handle.result(timeout=20)

    run(app, main)
