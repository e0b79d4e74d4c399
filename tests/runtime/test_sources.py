"""Sources: what comes starts runs, or goes into mailboxes, once; and is acknowledged when that is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import perdure
from perdure import Incoming, MailboxFull, SchemaOutdated, StoreUnavailable, UsageError
from tests.runtime.sinking import grows
from tests.runtime.sourcing import Belt, told
from tests.runtime.world import fresh_app, working


def test_each_thing_that_comes_starts_one_run_however_often_it_comes() -> None:
    app, belt = fresh_app(), Belt()
    done: list[str] = []

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    app.source("orders", belt, start=order)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            belt.put("b", "coffee")
            await grows(lambda: len(belt.taken), 2)
            belt.put("a", "tea")
            await grows(lambda: len(belt.taken), 3)
            await grows(lambda: len(done), 2)

    asyncio.run(main())
    assert sorted(done) == ["coffee", "tea"]
    assert belt.closed >= 1


def test_a_lost_connection_is_begun_again_and_what_was_not_acknowledged_is_known() -> None:
    app, belt = fresh_app(), Belt()
    done: list[str] = []

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    app.source("orders", belt, start=order)
    belt.deaf_times = 1
    belt.breaks_after = 1

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(done), 1)
            await grows(lambda: len(belt.taken), 1)

    asyncio.run(main())
    assert done == ["tea"]
    assert belt.given.count("a") >= 2


def test_arguments_thread_and_tenant_may_be_taken_from_what_comes() -> None:
    app, belt = fresh_app(), Belt()

    @app.agent
    async def order(item: str, count: int) -> str:
        return item * count

    app.source(
        "orders", belt, start=order, args=lambda got: (got.data["item"], got.data["count"]),
        thread_id=lambda got: f"customer-{got.data['who']}", tenant=lambda got: "acme",
    )  # fmt: skip

    async def main() -> None:
        async with working(app):
            belt.put("a", {"item": "tea", "count": 2, "who": 7})
            await grows(lambda: len(belt.taken), 1)
            [run] = await app.runs(thread_id="customer-7", tenant="acme")
            assert await app.handle(run.run_id).result(timeout=20) == "teatea"

    asyncio.run(main())


def test_what_comes_may_be_a_message() -> None:
    app, belt = fresh_app(), Belt()

    @app.agent
    async def desk() -> list[Any]:
        return [await perdure.receive(), await perdure.receive()]

    app.source("mail", belt, send_to=lambda got: "desk")

    async def main() -> None:
        async with working(app):
            handle = await app.start(desk, thread_id="desk")
            belt.put("a", "one")
            await grows(lambda: len(belt.taken), 1)
            belt.put("a", "one")
            await grows(lambda: len(belt.taken), 2)
            belt.put("b", "two")
            assert await handle.result(timeout=20) == ["one", "two"]

    asyncio.run(main())


def test_what_can_never_be_taken_is_rejected_and_the_rest_goes_on() -> None:
    app, belt = fresh_app(), Belt()
    done: list[str] = []

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    app.source("orders", belt, start=order, args=lambda got: (got.data["item"],))

    async def main() -> None:
        async with working(app):
            belt.put("a", "no dict")
            belt.put("b", {"item": ["not", "text"]})
            belt.put("c", {"item": "tea"})
            await grows(lambda: len(belt.taken), 1)
            belt.put("c", {"item": "other input under the same id"})
            await grows(lambda: len(set(belt.rejected)), 3)
            await grows(lambda: len(done), 1)

    asyncio.run(main())
    assert (set(belt.rejected), belt.taken, done) == ({"a", "b", "c"}, ["c"], ["tea"])


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("away"),
        SchemaOutdated("migrate it"),
        perdure.StoreError("read-only"),
        asyncio.CancelledError(),
    ],
)
def test_a_store_that_takes_nothing_has_nothing_rejected(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    app, belt = fresh_app(), Belt()
    done: list[str] = []
    failures = [error] * 3

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    start = app.start

    async def refusing(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await start(*args, **kwargs)

    monkeypatch.setattr(app, "start", refusing)
    app.source("orders", belt, start=order)

    async def main() -> None:
        async with working(app):
            belt.put("a", "tea")
            await grows(lambda: len(done), 1)

    asyncio.run(main())
    assert (belt.taken, belt.rejected) == (["a"], [])


def test_bad_sources_are_refused() -> None:
    app = fresh_app()

    @app.agent
    async def order(item: str) -> None: ...

    with pytest.raises(UsageError, match=r"no perdure\.Source"):
        app.source("x", object(), start=order)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give one"):
        app.source("x", Belt())
    with pytest.raises(UsageError, match="give one"):
        app.source("x", Belt(), start=order, send_to=lambda got: "t")
    with pytest.raises(UsageError, match="for starts"):
        app.source("x", Belt(), send_to=lambda got: "t", tenant=lambda got: "t")
    with pytest.raises(UsageError, match="args"):
        app.source("x", Belt(), start=order, args="data")  # type: ignore[arg-type]
    with pytest.raises(perdure.UnknownAgent):
        app.source("x", Belt(), start="nobody")
    app.source("x", Belt(), start=order)
    with pytest.raises(UsageError, match="already"):
        app.source("x", Belt(), start=order)


@pytest.mark.parametrize("id", ["", None, 5])
def test_what_has_no_id_is_rejected(id: Any) -> None:
    app, belt = fresh_app(), Belt()

    @app.agent
    async def order(item: str) -> None:
        raise AssertionError("nobody could know it again")

    app.source("orders", belt, start=order)

    async def main() -> None:
        async with working(app):
            belt.put(id, "tea")
            await grows(lambda: len(belt.rejected), 1)

    asyncio.run(main())
    assert (belt.rejected, belt.taken) == ([id], [])


def test_a_very_long_id_is_known_again() -> None:
    app, belt = fresh_app(), Belt()
    done: list[str] = []

    @app.agent
    async def order(item: str) -> None:
        done.append(item)

    app.source("orders", belt, start=order)

    async def main() -> None:
        async with working(app):
            for _ in range(2):
                belt.put("x" * 2000, "tea")
                count = len(belt.taken) + 1
                await grows(lambda: len(belt.taken), count)
            await grows(lambda: len(done), 1)

    asyncio.run(main())
    assert done == ["tea"]


def test_two_sources_share_no_keys_and_windows_make_sense() -> None:
    app = fresh_app()

    @app.agent
    async def order(item: str) -> None: ...

    with pytest.raises(UsageError, match="no colon"):
        app.source("a:b", Belt(), start=order)
    for window in (0, -1, None, True):
        belt = Belt()
        belt.window = window  # type: ignore[assignment]
        with pytest.raises(UsageError, match="window of source"):
            app.source("x", belt, start=order)


def test_a_source_that_gives_something_else_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Belt):
        async def receive(self) -> AsyncIterator[Incoming]:
            self.given.append("x")
            yield {"id": 1}  # type: ignore[misc]

    app, odd = fresh_app(), Odd()

    @app.agent
    async def order(item: str) -> None: ...

    app.source("odd", odd, start=order)

    async def main() -> None:
        async with working(app):
            await grows(lambda: len(odd.given), 2)

    asyncio.run(main())
    assert "a source gives perdure.Incoming" in caplog.text


class OddlyError(Exception):
    """Nobody can say what it says."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_what_its_source_can_make_nothing_of_is_rejected_and_said_so() -> None:
    app, belt = fresh_app(), Belt()

    @app.agent
    async def order(item: str) -> None: ...

    app.source("orders", belt, start=order)

    async def main() -> None:
        async with working(app):
            belt.put("deep", RecursionError("too deep"))
            belt.put("odd", OddlyError())
            belt.put("good", "tea")
            await grows(lambda: len(belt.rejected) + len(belt.taken), 3)

    with told("source.rejected") as heard:
        asyncio.run(main())
    assert (sorted(belt.rejected), belt.taken) == (["deep", "odd"], ["good"])
    assert {fields["id"]: fields["error"][:24] for _, fields in heard} == {
        "deep": "RecursionError: too deep",
        "odd": "OddlyError: <no text: Ru",
    }


def test_what_waits_is_told_once_for_all_that_wait_and_once_when_none_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, belt = fresh_app(), Belt()
    tries: list[str] = []
    full = True

    @app.agent
    async def desk() -> None: ...

    async def sending(thread_id: str, message: Any, **named: Any) -> None:
        tries.append(message)
        if full:
            raise MailboxFull("the mailbox is full")

    monkeypatch.setattr(app, "send", sending)
    app.source("mail", belt, send_to=lambda got: "desk")

    async def main() -> None:
        nonlocal full
        async with working(app):
            for number in range(10):
                belt.put(f"m{number}", f"m{number}")
            await grows(lambda: len(tries), 40)
            full = False
            await grows(lambda: len(belt.taken), 10)

    with told("service.failed", "service.recovered") as heard:
        asyncio.run(main())
    about = [(event, fields.get("error")) for event, fields in heard if "mail" in fields["service"]]
    assert about == [("service.failed", "MailboxFull: the mailbox is full"), ("service.recovered", None)]
    assert "Traceback" not in caplog.text


class Away(Belt):
    """Its broker is down at first."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors = list(errors)

    async def receive(self) -> AsyncIterator[Incoming]:
        if self.errors:
            raise self.errors.pop(0)
        async for item in super().receive():
            yield item


@pytest.mark.parametrize(
    ("error", "tracebacks", "lines"),
    [
        (ConnectionError("the broker is down"), 0, 1),
        (TimeoutError(), 0, 1),
        (asyncio.CancelledError(), 0, 1),
        (ValueError("a bug of the source"), 1, 0),
    ],
)
def test_a_broker_that_is_down_is_told_when_it_goes_and_when_something_comes_again(
    error: BaseException, tracebacks: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    app, away = fresh_app(), Away(*[error] * 4)

    @app.agent
    async def order(item: str) -> None: ...

    app.source("orders", away, start=order)

    async def main() -> None:
        async with working(app):
            away.put("a", "tea")
            await grows(lambda: len(away.taken), 1)

    with told("service.failed", "service.recovered") as heard:
        asyncio.run(main())
    events = [event for event, fields in heard if fields["service"] == "source orders"]
    assert events == ["service.failed"] * lines + ["service.recovered"]
    assert caplog.text.count("Traceback") == tracebacks


def test_a_source_that_cannot_be_closed_or_gives_nothing_is_refused() -> None:
    class Plain(Belt):
        def close(self) -> None:  # type: ignore[override]
            raise AssertionError("it is refused")

    class Answering(Belt):
        async def receive(self) -> Any:  # type: ignore[override]
            return []

    for source, words in ((Plain(), "close of source 'x' is a plain def"), (Answering(), "receive of source 'x'")):
        with pytest.raises(UsageError, match=words):
            fresh_app().source("x", source, send_to=lambda got: "t")
