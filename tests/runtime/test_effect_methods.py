"""Effects by where their code is: methods, whose `self` is no argument, and closures that are garbage."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure import App, DidNotHappen, Happened, Retry, RunFailed
from perdure.core.effects import EffectState
from perdure.runtime.effect import effect_of
from tests.runtime.paying import QUICK, ledger, run, states
from tests.runtime.world import SETTINGS, fresh_app, until

log: list[str] = []
broken: list[bool] = []


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    log.clear()
    broken.clear()


class Hotel:
    """Books rooms; each of its effects is undone in another way."""

    def __init__(self, name: str) -> None:
        self.name = name

    def free(self, booking: str, room: str) -> None:
        if broken:
            broken.clear()
            raise ConnectionResetError("the hotel is asleep")
        log.append(f"{self.name} frees {booking} {room}")

    @staticmethod
    def forget(booking: str, room: str, nights: int = 1) -> None:
        if broken:
            broken.clear()
            raise ConnectionResetError("the hotel is asleep")
        log.append(f"forgotten: {booking} {room} {nights}")

    async def look_up(self, key: str, args: dict[str, Any]) -> Happened | DidNotHappen:
        log.append(f"{self.name} looks for {args}")
        return Happened("found")

    @perdure.effect(undo=free)
    async def book(self, room: str) -> str:
        return f"{self.name}:{room}"

    @perdure.effect(undo=forget)
    async def reserve(self, room: str, nights: int) -> str:
        return f"{self.name}-{room}"

    @perdure.effect(verify=look_up, retry=QUICK)
    async def lose(self, room: str) -> str:
        raise ConnectionResetError("the line is dead")


hotel = Hotel("ritz")


async def book() -> None:
    await hotel.book("r1")
    raise ValueError("no")


async def reserve() -> None:
    await hotel.reserve("r1", nights=2)
    raise ValueError("no")


@pytest.mark.parametrize(
    ("agent", "undone"), [(book, "ritz frees ritz:r1 r1"), (reserve, "forgotten: ritz-r1 r1 2")], ids=["own", "static"]
)
def test_an_undo_gets_the_result_and_the_arguments_and_a_method_its_object(
    agent: Callable[[], Awaitable[None]], undone: str
) -> None:
    app = fresh_app()
    declared = app.agent(agent)

    async def main() -> None:
        with pytest.raises(RunFailed, match="ValueError: no"):
            await (await app.start(declared)).result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert log == [undone]


def test_a_verify_that_is_a_method_has_its_object() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        return str(await hotel.lose("r1"))

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "found"

    run(app, main)
    assert log == ["ritz looks for {'room': 'r1'}"]


def in_another_life(app: App, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an agent that fails, and have its undo fail in the first worker's hands, and tried in the second one's, which
    has run none of its code."""
    monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=30.0))
    broken.append(True)

    async def failed_once() -> bool:
        return not broken

    async def main() -> None:
        async with app:
            async with app.worker(**SETTINGS):
                handle = await app.start(agent)
                await until(failed_once, "its undo has failed")
            monkeypatch.setattr("perdure.runtime.undoing.TRIES", Retry(attempts=5, delay_s=0.001))
            async with app.worker(**SETTINGS):
                with pytest.raises(RunFailed, match="ValueError: no"):
                    await handle.result(timeout=20)

    asyncio.run(main())


def test_after_a_restart_it_is_undone_with_the_arguments_that_are_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()

    in_another_life(app, app.agent(reserve), monkeypatch)

    assert log == ["forgotten: ritz-r1 r1 2"]


def test_after_a_restart_an_undo_that_needs_its_object_says_that_nobody_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = fresh_app()

    in_another_life(app, app.agent(book), monkeypatch)

    async def main() -> None:
        [row] = await ledger(app)
        assert row.state is EffectState.UNDO_FAILED
        assert row.note is not None and "Hotel.free is a method" in row.note and "@staticmethod" in row.note

    run(app, main)
    assert log == []


# -- closures ---------------------------------------------------------------------------------------------------------


def made_anew(booked: list[str]) -> Any:
    """A closure with an undo of its own. It is in a cycle: when nobody has it any more, the collector finds it."""

    def free(booking: str) -> None:
        booked.remove(booking)
        assert pay is not None

    @perdure.effect(undo=free)
    async def pay(what: str) -> str:
        booked.append(what)
        return what

    return pay


def test_an_effect_that_nobody_has_any_more_leaves_no_doubt_whose_undo_it_is() -> None:
    gc.disable()
    try:
        made = made_anew([])
        assert effect_of(made.plan.code) is made
        again = made_anew([])
        assert effect_of(made.plan.code) is None, "there are two, and nobody knows which is meant"
        del made

        assert effect_of(again.plan.code) is again
    finally:
        gc.enable()
