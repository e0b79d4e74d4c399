"""Unwinding a run that is parked: its code closes what is local, and no verb of it acts any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import perdure
from perdure import Unwind
from tests.runtime.shapes import mark
from tests.runtime.world import asked, fresh_app, keys_of, parked, working

VERBS: dict[str, Callable[[], Any]] = {
    "step": lambda: mark("no"),
    "interrupt": lambda: perdure.interrupt(name="no"),
    "sleep": lambda: perdure.sleep(0),
    "sleep_until": lambda: perdure.sleep_until("2020-01-01T00:00+00:00"),
    "receive": perdure.receive,
    "send": lambda: perdure.send(perdure.current().thread_id, "no"),
    "start": lambda: perdure.start("child"),
    "call": lambda: perdure.call("child"),
    "timeout": lambda: perdure.timeout(1).__aenter__(),
    "now": perdure.now,
    "random": perdure.random,
    "uuid4": perdure.uuid4,
}


async def refusals() -> dict[str, str]:
    """What each verb raises here."""
    refused: dict[str, str] = {}
    for name, verb in VERBS.items():
        try:
            made = verb()
            if asyncio.iscoroutine(made):
                await made
            refused[name] = "acted"
        except BaseException as error:
            refused[name] = type(error).__name__
    return refused


def test_a_worker_that_drains_lets_a_parked_run_clean_up_what_it_has_open() -> None:
    app = fresh_app()
    seen: list[str] = []
    closing: list[asyncio.Event] = []

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt()
        finally:
            closed: asyncio.Queue[str] = asyncio.Queue()
            asyncio.get_running_loop().call_later(0.2, closed.put_nowait, "closed")
            closing[0].set()
            seen.append(await closed.get())

    async def main() -> None:
        closing.append(asyncio.Event())
        async with working(app):
            await app.start(agent)
            await closing[0].wait()

    asyncio.run(main())
    assert seen == ["closed"]


def test_no_verb_acts_while_a_parked_run_is_unwound() -> None:
    app = fresh_app()
    refused: dict[str, str] = {}

    @app.agent
    async def child() -> None: ...

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[None]:
        try:
            yield
        finally:
            if not refused:
                refused.update(await refusals())

    @app.agent
    async def agent() -> str:
        async with around():
            return str(await perdure.interrupt(name="q"))

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert await keys_of(handle) == []
            assert list(await asked(app, handle)) == ["q"]
            assert [run.agent for run in await app.runs()] == ["agent"]
            assert await app.thread(handle.thread_id).mailbox() == []
            store = (await app._client()).store
            assert [wait.key for wait in await store.waits([handle._id])] == ["q"]
            await app.resume(handle.thread_id, "yes")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "yes"
    assert refused == dict.fromkeys(VERBS, "Unwind")


def test_an_agent_that_catches_everything_is_parked_all_the_same() -> None:
    app = fresh_app()
    caught: list[str] = []

    @app.agent
    async def agent() -> str:
        try:
            return str(await perdure.interrupt())
        except BaseException as error:
            caught.append(type(error).__name__)
            return "given up"

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "answer"
    assert caught == ["Unwind"]


def test_except_exception_and_except_cancelled_do_not_see_a_parking() -> None:
    app = fresh_app()
    seen: list[str] = []

    async def asks(name: str) -> str:
        try:
            return str(await perdure.interrupt(name=name))
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(asks("a"), asyncio.create_task(asks("b")), asyncio.shield(asks("c"))))

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            for name in "bca":
                await parked(handle, worker)
                await app.resume((await asked(app, handle))[name], name)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert seen == []


def test_cleaning_up_may_take_a_moment_while_a_parked_run_is_unwound() -> None:
    app = fresh_app()
    closed: list[str] = []

    @app.agent
    async def agent() -> str:
        try:
            return str(await perdure.interrupt())
        finally:
            await asyncio.get_running_loop().run_in_executor(None, closed.append, "closed")

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert closed == ["closed"]
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "answer"
    assert closed == ["closed"] * 2


def test_unwind_is_no_exception_that_an_agent_could_catch_by_accident() -> None:
    assert not issubclass(Unwind, Exception)
