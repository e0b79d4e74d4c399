"""Compensation: what a run has done is undone, the last first, whatever comes in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, Retry, RunFailed
from perdure.core.changes import EndRun
from perdure.core.effects import EffectFilter
from tests.runtime.paying import ledger, run, states
from tests.runtime.world import SETTINGS, fresh_app, until


class Shop:
    """Effects with undos, and the order of what happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken = 0

    def effects(self) -> tuple[Any, Any, Any]:
        log = self.log

        async def unbook(booking: str, what: str) -> None:
            if self.broken:
                self.broken -= 1
                raise ConnectionResetError("the shop is closed")
            log.append(f"unbook {booking} {what} {perdure.effect_key().endswith('-undo')}")

        def refund(receipt: str) -> None:
            log.append(f"refund {receipt}")

        @perdure.effect(undo=unbook)
        async def book(what: str) -> str:
            log.append(f"book {what}")
            return f"b-{what}"

        @perdure.effect(undo=refund)
        async def charge(what: str) -> str:
            log.append(f"charge {what}")
            return f"c-{what}"

        @perdure.effect
        async def mail(what: str) -> None:
            log.append(f"mail {what}")

        return book, charge, mail


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_run_that_ends_badly_undoes_what_it_has_done_the_last_first(how: str) -> None:
    app, shop = fresh_app(), Shop()
    book, charge, mail = shop.effects()
    reached = asyncio.Event()

    @app.agent
    async def agent(round: int = 1) -> Any:
        await book(f"room{round}")
        if round == 1:
            return perdure.Again(2)
        await charge("room2")
        await mail("room2")
        if how == "failed":
            raise ValueError("no")
        reached.set()
        return await perdure.sleep(3600)

    async def main() -> None:
        handle = await app.start(agent)
        if how == "cancelled":
            await reached.wait()
            await handle.cancel("stop")
        with pytest.raises(perdure.RunEnded, match=r"no|stop"):
            await handle.result(timeout=20)
        assert (await handle.status()).state == how
        assert await states(app) == ["undone", "undone", "undone", "done"]

    run(app, main)
    assert shop.log[4:] == ["refund c-room2", "unbook b-room2 room2 True", "unbook b-room1 room1 True"]


def test_an_undo_that_fails_twice_is_tried_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=0.001))
    app, shop = fresh_app(), Shop()
    book, charge, _ = shop.effects()
    shop.broken = 2

    @app.agent
    async def agent() -> None:
        await charge("x")
        await book("x")
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        rows = await ledger(app)
        assert [(row.state.value, row.undo_attempt) for row in rows] == [("undone", 1), ("undone", 3)]

    run(app, main)
    assert shop.log[2:] == ["unbook b-x x True", "refund c-x"]


def test_an_undo_that_never_works_is_left_visible_and_the_rest_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=0.001))
    app, shop = fresh_app(), Shop()
    book, charge, _ = shop.effects()
    shop.broken = 5

    @app.agent
    async def agent() -> None:
        await charge("x")
        await book("x")
        raise ValueError("no")

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        rows = await ledger(app)
        assert [row.state.value for row in rows] == ["undone", "undo_failed"]
        assert rows[1].note == "try 5 of its undo: ConnectionResetError: the shop is closed"
        client = await app._client()
        await client.store.retry(int(handle.run_id[1:]), [], undo=True)

        async def is_undone() -> bool:
            return await states(app) == ["undone", "undone"] and (await handle.status()).state == "failed"

        await until(is_undone, "the undo that was sent on has worked")
        with pytest.raises(RunFailed, match="ValueError: no"):
            await handle.result(timeout=20)

    run(app, main)
    assert shop.log == ["charge x", "book x", "refund c-x", "unbook b-x x True"]


def test_compensate_undoes_what_was_done_so_far_and_the_run_goes_on() -> None:
    app, shop = fresh_app(), Shop()
    book, charge, _ = shop.effects()

    @app.agent
    async def agent() -> str:
        await book("x")
        await perdure.compensate()
        await charge("y")
        return "done"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "done"
        assert await states(app) == ["undone", "done"]

    run(app, main)
    assert shop.log == ["book x", "unbook b-x x True", "charge y"]


def test_what_was_done_in_the_last_moment_is_undone_too(tmp_path: Path) -> None:
    """Its record may still be on its way to the disk when the code fails."""
    app, shop = App("shop", store=f"sqlite:///{tmp_path}/shop.db"), Shop()
    book, _, _ = shop.effects()

    @app.agent
    async def agent() -> None:
        await book("x")
        raise ValueError("no")

    async def main() -> None:
        handles = [await app.start(agent) for _ in range(10)]
        for handle in handles:
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
        assert await states(app) == ["undone"] * 10

    run(app, main)


@pytest.mark.parametrize("effects", [1, 3, 4])
def test_a_run_that_fails_reads_its_ledger_once(effects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    app, shop = fresh_app(), Shop()
    book, _, _ = shop.effects()
    read: list[int] = []

    @app.agent
    async def agent() -> None:
        for number in range(effects):
            await book(f"room {number}")
        raise ValueError("no")

    async def main() -> None:
        store = (await app._client()).store
        effects_of = store.effects

        async def counted(where: EffectFilter) -> Any:
            found = await effects_of(where)
            read.extend([len(found)] if where.undoable else [])
            return found

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "effects", lambda self, where: counted(where))
            patch.setattr("perdure.runtime.undoing.PAGE", 3)
            with pytest.raises(RunFailed):
                await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["undone"] * effects

    run(app, main)
    assert read == {1: [1], 3: [3, 0], 4: [3, 1]}[effects]


def test_a_worker_that_drains_hands_back_a_run_whose_undo_is_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=30.0))
    app, log, broken = fresh_app(), list[str](), [True]

    def unbook(booking: str) -> None:
        if broken:
            broken.clear()
            raise ConnectionResetError("the shop is closed")
        log.append(f"unbook {booking}")

    @perdure.effect(undo=unbook)
    async def book(what: str) -> str:
        log.append(f"book {what}")
        return f"b-{what}"

    @app.agent
    async def agent() -> None:
        await book("x")
        raise ValueError("no")

    async def failed_once() -> bool:
        return not broken

    async def main() -> None:
        async with app:
            async with app.worker(**SETTINGS):
                handle = await app.start(agent)
                await until(failed_once, "its undo has failed")
            assert (await handle.status()).state == "queued"
            assert log == ["book x"]
            async with app.worker(**SETTINGS):
                with pytest.raises(RunFailed, match="no"):
                    await handle.result(timeout=20)
            assert await states(app) == ["undone"]

    asyncio.run(main())
    assert log == ["book x", "unbook b-x"]


def test_a_run_whose_cancellation_comes_while_its_end_is_on_its_way_undoes_what_it_has_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, shop = fresh_app(), Shop()
    book, _, _ = shop.effects()

    @app.agent
    async def agent() -> str:
        return str(await book("x"))

    async def main() -> None:
        store = (await app._client()).store
        commit = store.commit

        async def overtaken(worker: int, changes: Any) -> Any:
            for change in changes:
                if isinstance(change, EndRun) and change.outcome == "completed":
                    await app.cancel(f"r{change.run}", reason="enough")
            return await commit(worker, changes)

        monkeypatch.setattr(type(store), "commit", lambda self, worker, changes: overtaken(worker, changes))
        with pytest.raises(perdure.RunCancelled):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert shop.log == ["book x", "unbook b-x x True"]


def test_a_run_that_was_held_while_it_undid_something_undoes_it_before_it_ends_as_cancelled() -> None:
    app = fresh_app()
    undoing = asyncio.Event()
    undone: list[str] = []

    async def unbook(booking: str) -> None:
        if not undoing.is_set():
            undoing.set()
            await asyncio.Event().wait()
        undone.append(booking)

    @perdure.effect(undo=unbook)
    async def book(what: str) -> str:
        return what

    @app.agent
    async def agent() -> None:
        await book("x")
        raise ValueError("no")

    async def main() -> None:
        handle = await app.start(agent)
        await undoing.wait()
        store = (await app._client()).store
        [worker] = await store.workers()
        await store.take_over([worker.id], recoveries_max=0)
        assert (await handle.status()).state == "held"
        await handle.cancel("enough")
        with pytest.raises(perdure.RunEnded):
            await handle.result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert undone == ["x"]


def test_a_cancellation_while_effects_are_undone_breaks_nothing_off_and_the_run_ends_as_cancelled() -> None:
    app = fresh_app()
    undoing, go_on = asyncio.Event(), asyncio.Event()
    undone: list[str] = []

    async def unbook(booking: str) -> None:
        undoing.set()
        await go_on.wait()
        undone.append(booking)

    @perdure.effect(undo=unbook)
    async def book(what: str) -> str:
        return what

    @app.agent
    async def agent() -> None:
        await book("x")
        await book("y")
        raise ValueError("no")

    async def main() -> None:
        handle = await app.start(agent)
        await undoing.wait()
        await handle.cancel("enough")
        go_on.set()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)
        assert await states(app) == ["undone", "undone"]

    run(app, main)
    assert undone == ["y", "x"]


def test_a_closure_that_is_made_anew_for_each_run_is_undone_by_its_own_undo() -> None:
    app = fresh_app()
    undone: list[str] = []

    @app.agent
    async def agent(who: str) -> None:
        def give_back(booking: str) -> None:
            undone.append(f"{booking} by {who}")

        @perdure.effect(undo=give_back)
        async def book() -> str:
            return who

        await book()
        await perdure.receive()
        raise ValueError("no")

    async def main() -> None:
        handles = [await app.start(agent, who) for who in ("ann", "bob")]
        for handle in handles:
            await app.send(handle.thread_id, "go")
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)

    run(app, main)
    assert sorted(undone) == ["ann by ann", "bob by bob"]


def test_a_run_that_has_compensated_and_failed_is_not_sent_on_with_records_that_do_not_hold() -> None:
    app, shop = fresh_app(), Shop()
    book, _, _ = shop.effects()

    @app.agent(retry=Retry(attempts=3, delay_s=0.01, retry_on=ValueError))
    async def agent() -> str:
        booking = await book("x")
        if len(shop.log) == 1:
            await perdure.compensate()
            raise ValueError("sold out")
        return str(booking)

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed, match="sold out"):
            await handle.result(timeout=20)
        with pytest.raises(perdure.Conflict, match="was undone"):
            await app.retry(handle.run_id)

    run(app, main)
    assert shop.log == ["book x", "unbook b-x x True"]
