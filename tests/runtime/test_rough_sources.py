"""Sources that hang, hold on or break off as they like: the worker goes on, and ends in its time; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import pytest

from perdure import App, Incoming, UsageError
from perdure.runtime import sinks
from perdure.runtime.callables import shielded
from tests.runtime.sinking import grows
from tests.runtime.sourcing import Belt, told
from tests.runtime.world import fresh_app, working

MOMENT_S = 0.05


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CLOSE_S", MOMENT_S)
    monkeypatch.setattr(sinks, "LET_GO_S", MOMENT_S)


def ordering(belt: Belt, **options: Any) -> tuple[App, list[str]]:
    """An app that takes what this source gives, and what it has done."""
    app, done = fresh_app(), list[str]()

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    app.source("orders", belt, start=order, **options)
    return app, done


class NoException(BaseException):
    """What is no `Exception`."""


def raising(*errors: BaseException) -> Callable[[Any], Any]:
    """A function that raises these, one after the other."""
    left = list(errors)

    def function(_: Any = None) -> NoReturn:
        raise left.pop(0)

    return function


OUTRAGEOUS: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    asyncio.CancelledError,
    lambda: NoException("x"),
    GeneratorExit,
]


# -- the end ----------------------------------------------------------------------------------------------------------


async def hold_on() -> None:
    """Whatever anybody says, until the loop is gone."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def wait_on() -> None:
    """For ever, unless it is cancelled."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("last", [hold_on, wait_on])
@pytest.mark.parametrize("where", ["waiting", "letting go"])
def test_a_source_that_does_not_let_go_is_left_to_itself_and_named(
    last: Callable[[], Awaitable[None]], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Belt):
        async def receive(self) -> AsyncIterator[Incoming]:
            try:
                yield self._item("a")
                await (last() if where == "waiting" else wait_on())
            finally:
                await last()

    belt = Stubborn()
    belt.left["a"] = "tea"
    app, done = ordering(belt)

    async def main() -> None:
        async with working(app):
            await grows(lambda: len(done), 1)
        assert belt.closed == 1

    asyncio.run(main())
    assert (
        f"source 'orders' does not let go, and is left to itself: source orders, in {last.__name__} at" in caplog.text
    )


def test_a_source_that_keeps_its_cancellation_to_itself_ends_with_the_next_thing_that_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deaf(Belt):
        async def receive(self) -> AsyncIterator[Incoming]:
            yield self._item("a")
            for id in ("b", "c"):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    yield self._item(id)

    belt = Deaf()
    belt.left |= {"a": "tea", "b": "coffee", "c": "milk"}
    app, _ = ordering(belt)

    async def main() -> None:
        async with working(app):
            await grows(lambda: len(belt.taken), 1)
        async with app:
            assert len(await app.runs()) == 1

    asyncio.run(main())
    assert (belt.given, belt.taken, belt.rejected) == (["a", "b"], ["a"], []), "what came too late was not answered"
    assert "let go" not in caplog.text


# -- answers ----------------------------------------------------------------------------------------------------------


class HardOfHearing(Belt):
    """Its broker is told, and does not hear at first."""

    window = 1
    timeout_s = MOMENT_S

    def __init__(self, answer: Callable[[], Awaitable[Any]], times: int = 2) -> None:
        super().__init__()
        self.answer = answer
        self.times = times

    def _item(self, id: str) -> Incoming:
        item = super()._item(id)

        def first(then: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
            async def answer() -> None:
                if self.times:
                    self.times -= 1
                    self.news.put_nowait(id)
                    await self.answer()
                else:
                    await then()

            return answer

        return Incoming(item.id, item.data, {}, first(item.ack), first(item.reject), item.unfit)


@pytest.mark.parametrize("answer", [hold_on, wait_on])
def test_an_answer_that_hangs_is_given_up_told_and_its_place_is_free(answer: Callable[[], Awaitable[Any]]) -> None:
    belt = HardOfHearing(answer)
    app, done = ordering(belt)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            belt.put("bad", ["no", "text"])
            await grows(lambda: len(belt.taken) + len(belt.rejected), 2)

    with told("service.failed", "service.recovered") as heard:
        asyncio.run(main())
    assert (done, belt.taken, belt.rejected) == (["tea"], ["a"], ["bad"])
    said = [(event, fields.get("error")) for event, fields in heard if fields["service"].startswith("acknowledging")]
    assert said[0] == ("service.failed", "its broker did not hear of it within 0.05 s")
    assert said[-1] == ("service.recovered", None)


@pytest.mark.parametrize("answer", [hold_on, wait_on])
def test_an_answer_that_hangs_does_not_keep_the_worker(answer: Callable[[], Awaitable[Any]]) -> None:
    belt = HardOfHearing(answer)
    belt.timeout_s = 3600.0
    app, done = ordering(belt)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(done), 1)
        assert (belt.taken, belt.rejected, list(belt.left)) == ([], [], ["a"])

    asyncio.run(main())


@pytest.mark.parametrize("make", OUTRAGEOUS)
def test_whatever_an_answer_raises_its_source_goes_on(make: Callable[[], BaseException]) -> None:
    async def answer() -> NoReturn:
        raise make()

    belt = HardOfHearing(answer)
    app, done = ordering(belt)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            belt.put("bad", ["no", "text"])
            await grows(lambda: len(belt.taken) + len(belt.rejected), 2)

    asyncio.run(main())
    assert (done, belt.taken, belt.rejected) == (["tea"], ["a"], ["bad"])


# -- breaking off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", OUTRAGEOUS)
def test_whatever_receiving_raises_it_is_begun_again(make: Callable[[], BaseException]) -> None:
    class Rough(Belt):
        begun = 0

        async def receive(self) -> AsyncIterator[Incoming]:
            self.begun += 1
            if self.begun == 1:
                raise make()
            async for item in super().receive():
                yield item

    belt = Rough()
    app, _ = ordering(belt)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(belt.taken), 1)

    asyncio.run(main())
    assert belt.taken == ["a"]


@pytest.mark.parametrize("make", OUTRAGEOUS)
def test_whatever_closing_raises_the_worker_ends(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Rough(Belt):
        async def close(self) -> None:
            raise make()

    belt = Rough()
    app, _ = ordering(belt)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(belt.taken), 1)

    asyncio.run(main())
    assert "source 'orders' did not close" in caplog.text


@pytest.mark.parametrize("make", OUTRAGEOUS)
@pytest.mark.parametrize("what", ["args", "thread_id", "tenant"])
def test_what_a_function_of_what_comes_breaks_on_in_any_way_is_rejected(
    what: str, make: Callable[[], BaseException]
) -> None:
    belt = Belt()
    app, done = ordering(belt, **{what: raising(make())})

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(belt.rejected), 1)

    asyncio.run(main())
    assert (belt.rejected, belt.taken, done) == (["a"], [], [])


def test_what_means_to_end_the_process_from_the_keyboard_does() -> None:
    with pytest.raises(KeyboardInterrupt), shielded():
        raise KeyboardInterrupt


# -- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1.0, None, True, "1", float("inf"), float("nan")])
def test_a_limit_of_answers_that_makes_no_sense_is_refused(limit: Any) -> None:
    belt = Belt()
    belt.timeout_s = limit
    with pytest.raises(UsageError, match=r"timeout_s of source 'orders' is .*; give a number of seconds above 0"):
        ordering(belt)
