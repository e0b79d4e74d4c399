"""What is in flight when the code around it ends: an effect, or an undo, is seen to its end, and its outcome kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Retry, RunFailed
from perdure.core.effects import EffectState
from tests.runtime.acting import mark
from tests.runtime.paying import QUICK, ledger, run, states
from tests.runtime.world import SETTINGS, asked, crash, fresh_app, keys_of, parked, until, working

# -- effects ----------------------------------------------------------------------------------------------------------


class Shop:
    """An effect that stands still until it is told to go on, and its undo."""

    def __init__(self, *, fails: Exception | None = None, **options: Any) -> None:
        self.in_flight, self.go_on = asyncio.Event(), asyncio.Event()
        self.log: list[str] = []

        async def unbook(booking: str) -> None:
            self.log.append(f"unbook {booking}")

        async def book(what: str) -> str:
            self.in_flight.set()
            await self.go_on.wait()
            self.log.append(f"book {what}")
            if fails is not None:
                raise fails
            return f"b-{what}"

        self.book = perdure.effect(book, undo=unbook, **options)


def test_what_is_in_flight_when_its_sibling_fails_is_seen_to_its_end_and_undone() -> None:
    app, shop = fresh_app(), Shop()

    async def breaks() -> None:
        await shop.in_flight.wait()
        asyncio.get_running_loop().call_later(0.05, shop.go_on.set)
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        with pytest.raises(RunFailed, match="ValueError: no"):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert shop.log == ["book room", "unbook b-room"]


def test_what_is_in_flight_when_the_agent_returns_is_seen_to_its_end_and_recorded() -> None:
    app, shop = fresh_app(), Shop()
    begun: list[Any] = []

    @app.agent
    async def agent() -> str:
        begun.append(asyncio.create_task(shop.book("room")))
        await shop.in_flight.wait()
        asyncio.get_running_loop().call_later(0.05, shop.go_on.set)
        return "ok"

    async def main() -> None:
        handle = await app.start(agent)
        assert await handle.result(timeout=20) == "ok"
        [row] = await ledger(app)
        assert (row.state, row.attempt) == (EffectState.DONE, 1)
        assert "1/book" in [each.key for each in await handle.history()]

    run(app, main)
    assert shop.log == ["book room"]


def test_what_was_seen_to_its_end_is_not_done_again_when_the_agent_is_tried_again() -> None:
    app, shop = fresh_app(), Shop()
    failed: list[int] = []

    async def breaks() -> str:
        if failed:
            return "fine"
        await shop.in_flight.wait()
        failed.append(1)
        asyncio.get_running_loop().call_later(0.05, shop.go_on.set)
        raise ValueError("no")

    @app.agent(retry=Retry(attempts=2, delay_s=0.01, retry_on=ValueError))
    async def agent() -> list[str]:
        return list(await asyncio.gather(shop.book("room"), breaks()))

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == ["b-room", "fine"]
        assert await states(app) == ["done"]

    run(app, main)
    assert shop.log == ["book room"]


@pytest.mark.parametrize(("kind", "state"), [(ValueError, "absent"), (ConnectionResetError, "unknown")])
def test_what_an_error_says_after_its_sibling_has_failed_is_kept(kind: type[Exception], state: str) -> None:
    app, shop = fresh_app(), Shop(fails=kind("no answer"), on_unknown="retry", retry=QUICK)

    async def breaks() -> None:
        await shop.in_flight.wait()
        asyncio.get_running_loop().call_later(0.05, shop.go_on.set)
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        with pytest.raises(RunFailed, match="ValueError: no"):
            await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert (row.state, row.attempt) == (state, 1)
        assert row.note == f"{kind.__name__}: no answer"

    run(app, main)
    assert shop.log == ["book room"]


@pytest.mark.parametrize("limit", [0.1, None])
def test_one_that_hangs_holds_its_run_no_longer_than_its_time_limit(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.bodies.EFFECT_TIMEOUT_S", 0.1)
    app, shop = fresh_app(), Shop(timeout=limit, on_unknown="fail")

    async def breaks() -> None:
        await shop.in_flight.wait()
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        with pytest.raises(RunFailed, match="ValueError: no"):
            await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert row.state is EffectState.UNKNOWN
        assert limit is None or (row.note is not None and row.note.startswith("TimeoutError"))

    run(app, main)


def test_one_whose_intent_is_on_its_way_when_its_sibling_fails_does_not_happen() -> None:
    app, shop = fresh_app(), Shop()
    shop.go_on.set()

    async def breaks() -> None:
        while not writing:
            await asyncio.sleep(0)
        raise ValueError("no")

    writing: list[bool] = []

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        store = (await app._client()).store
        commit = store.commit

        async def slow(worker: int, changes: Any) -> Any:
            if any(type(each).__name__ == "IntendEffect" for each in changes):
                writing.append(True)
                await asyncio.sleep(0.05)  # the time that a commit takes
            return await commit(worker, changes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(store), "commit", lambda self, worker, changes: slow(worker, changes))
            with pytest.raises(RunFailed, match="ValueError: no"):
                await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["absent"]

    run(app, main)
    assert shop.log == []


def test_what_is_in_flight_when_its_run_is_held_is_seen_to_its_end() -> None:
    app, shop = fresh_app(), Shop()
    lives: list[int] = []

    async def first() -> str:
        return str(await (perdure.receive() if len(lives) == 1 else shop.book("room")))

    async def second() -> None:
        if len(lives) > 1:
            await shop.in_flight.wait()
            asyncio.get_running_loop().call_later(0.05, shop.go_on.set)
        await mark(f"life {len(lives)}")

    @app.agent
    async def agent() -> None:
        lives.append(1)
        await asyncio.gather(first(), second())

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.send(handle.thread_id, "go on")
            with pytest.raises(perdure.RunHeld, match="diverged"):
                await handle.result(timeout=20)
            assert await states(app) == ["done"]

    asyncio.run(main())
    assert shop.log == ["book room"]


def test_a_worker_that_is_to_stop_sees_it_out_and_undoes_it() -> None:
    app, shop = fresh_app(), Shop()
    failed = asyncio.Event()

    async def breaks() -> None:
        await shop.in_flight.wait()
        asyncio.get_running_loop().call_later(0.05, failed.set)
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        async with app:
            async with app.worker(**SETTINGS):
                handle = await app.start(agent)
                await failed.wait()
                asyncio.get_running_loop().call_later(0.1, shop.go_on.set)  # while the worker drains
            assert "unknown" not in await states(app)
            async with app.worker(**SETTINGS):
                with pytest.raises(RunFailed, match="ValueError: no"):
                    await handle.result(timeout=20)
            assert await states(app) == ["undone"]

    asyncio.run(main())
    assert shop.log == ["book room", "unbook b-room"]


def test_a_worker_that_is_to_stop_waits_for_it_for_its_grace_only() -> None:
    app, shop = fresh_app(), Shop()

    async def breaks() -> None:
        await shop.in_flight.wait()
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(shop.book("room"), breaks())

    async def main() -> None:
        async with app:
            async with app.worker(**{**SETTINGS, "grace_s": 0.1}):
                handle = await app.start(agent)
                await shop.in_flight.wait()
            assert (await handle.status()).state == "failed"
            assert await states(app) == ["unknown"]

    asyncio.run(main())
    assert shop.log == []


def test_a_cancellation_while_an_effect_is_seen_out_undoes_it() -> None:
    app, shop = fresh_app(), Shop()
    begun: list[Any] = []

    @app.agent
    async def agent() -> str:
        begun.append(asyncio.create_task(shop.book("room")))
        await shop.in_flight.wait()
        return "ok"

    async def main() -> None:
        handle = await app.start(agent)
        await shop.in_flight.wait()
        await handle.cancel("enough")
        shop.go_on.set()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert shop.log == ["book room", "unbook b-room"]


# -- undos in code ----------------------------------------------------------------------------------------------------


class Regret:
    """An effect whose undo takes a while, or fails at first."""

    def __init__(self, *, fails: int = 0) -> None:
        self.undoing, self.go_on = asyncio.Event(), asyncio.Event()
        self.log: list[str] = []

        async def unbook(booking: str) -> None:
            self.undoing.set()
            await self.go_on.wait()
            self.log.append(f"unbook {booking}")
            if len(self.log) <= fails:
                raise ConnectionResetError("the shop is closed")

        @perdure.effect(undo=unbook)
        async def book(what: str) -> str:
            return f"b-{what}"

        self.book = book


def test_a_durable_time_out_around_compensate_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=0.01))
    app, regret = fresh_app(), Regret(fails=2)

    @app.agent
    async def agent() -> str:
        await regret.book("x")
        await regret.book("y")
        try:
            async with perdure.timeout(0.05):
                await perdure.compensate()
                await perdure.receive()
                return "late"
        except perdure.TimedOut:
            return "timed out"

    async def main() -> None:
        handle = await app.start(agent)
        await regret.undoing.wait()
        asyncio.get_running_loop().call_later(0.2, regret.go_on.set)  # longer than the time-out around it
        assert await handle.result(timeout=20) == "timed out"
        assert await states(app) == ["undone", "undone"]

    run(app, main)
    assert regret.log == ["unbook b-y", "unbook b-y", "unbook b-y", "unbook b-x"]


def test_an_agent_that_returns_while_it_compensates_has_ended_when_that_has() -> None:
    app, regret = fresh_app(), Regret()
    begun: list[Any] = []

    @app.agent
    async def agent() -> str:
        await regret.book("x")
        await regret.book("y")
        begun.append(asyncio.create_task(perdure.compensate()))
        await regret.undoing.wait()
        asyncio.get_running_loop().call_later(0.05, regret.go_on.set)
        return "ok"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "ok"
        assert await states(app) == ["undone", "undone"]

    run(app, main)
    assert regret.log == ["unbook b-y", "unbook b-x"]


def test_a_run_that_is_cancelled_while_it_compensates_has_undone_everything_once() -> None:
    app, regret = fresh_app(), Regret()

    @app.agent
    async def agent() -> None:
        await regret.book("x")
        await regret.book("y")
        await perdure.compensate()

    async def main() -> None:
        handle = await app.start(agent)
        await regret.undoing.wait()
        await handle.cancel("enough")
        regret.go_on.set()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)
        assert await states(app) == ["undone", "undone"]

    run(app, main)
    assert regret.log == ["unbook b-y", "unbook b-x"]


def test_an_undo_that_was_broken_off_by_a_crash_is_seen_through_though_its_code_does_not_come_to_it_again() -> None:
    """The time-out around it had run out: a replay is interrupted before it undoes anything."""
    app, regret = fresh_app(), Regret()

    @app.agent
    async def agent() -> str:
        await regret.book("x")
        try:
            async with perdure.timeout(0.05):
                await perdure.compensate()
                return "late"
        except perdure.TimedOut:
            return "timed out"

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await regret.undoing.wait()

            async def has_run_out() -> bool:
                return "timeout" in await keys_of(handle)

            await until(has_run_out, "the time-out is on record")
            await crash(app, worker)
            regret.go_on.set()
            assert await handle.result(timeout=20) == "timed out"
            assert await states(app) == ["undone"]

    asyncio.run(main())
    assert regret.log == ["unbook b-x"]


# -- answers of another type ------------------------------------------------------------------------------------------


def test_an_answer_whose_result_is_none_of_the_effect_s_is_asked_for_again_with_the_reason() -> None:
    app = fresh_app()

    @perdure.effect
    async def count(what: str) -> int:
        raise ConnectionResetError("lost")

    @app.agent
    async def agent() -> int:
        return await count("x")

    async def main() -> None:
        handle = await app.start(agent)
        for _ in range(2):
            [first] = (await asked(app, handle)).values()
            await app.resume(first, {"happened": True, "result": "many"}, by="ann")

            async def is_asked_again(first: str = first) -> bool:
                return [each.id for each in await app.interrupts()] not in ([], [first])

            await until(is_asked_again, "another question")
        [again] = await app.interrupts()
        assert "'ann'" in again.payload["why"] and "int" in again.payload["why"]
        assert again.payload["why"].startswith("ConnectionResetError: lost")
        [row] = await ledger(app)
        await app.resolve_effect(f"e{row.id}", happened=True, result=7, by="ben")
        assert await handle.result(timeout=20) == 7
        [row] = await ledger(app)
        assert (row.state, row.by) == (EffectState.DONE, "ben")

    run(app, main)
