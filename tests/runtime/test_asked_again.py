"""Questions that are asked again: after a retry, and after an answer that the asking code could not read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure import AlreadyAnswered, App, Handle, InterruptInfo, InvalidAnswer, RunFailed, TimedOut
from tests.runtime.world import asked, crash, fresh_app, parked, passes, until, working


@dataclass
class Bid:
    """An answer that its own type has to judge."""

    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError("a bid is not negative")


async def _other_than(app: App, handle: Handle[Any], question: str) -> InterruptInfo:
    """The run's open question, when it is another one than this."""
    found: list[InterruptInfo] = []

    async def is_there() -> bool:
        found[:] = [row for row in await app.interrupts(run_id=handle.run_id) if row.id != question]
        return bool(found)

    await until(is_there, "another question")
    return found[0]


def test_a_run_that_is_sent_on_after_its_question_has_expired_asks_it_again() -> None:
    app = fresh_app()

    @app.agent
    async def ask() -> str:
        answer: str = await perdure.interrupt("go?", timeout=0.5)
        return answer

    async def main() -> None:
        async with app, working(app):
            handle = await app.start(ask)
            with pytest.raises(RunFailed, match="in time"):
                await handle.result()

            await app.retry(handle.run_id)

            (question,) = (await asked(app, handle)).values()
            await app.resume(question, "yes")
            assert await handle.result() == "yes"
            (row,) = await app.interrupts(run_id=handle.run_id, state=None)
            assert row.state == "answered"

    asyncio.run(main())


def test_an_agent_that_is_tried_again_asks_again() -> None:
    app = fresh_app()

    @app.agent(retry=perdure.Retry(attempts=2, retry_on=(TimedOut,), delay_s=0))
    async def ask() -> str:
        answer: str = await perdure.interrupt("go?", timeout=0.4)
        return answer

    async def main() -> None:
        async with app, working(app):
            handle = await app.start(ask)
            (question,) = (await asked(app, handle)).values()
            await passes(0.45)
            (again,) = (await asked(app, handle)).values()
            await app.resume(again, "yes")
            assert await handle.result() == "yes" and again == question

    asyncio.run(main())


@pytest.mark.parametrize("dies", [False, True])
def test_an_answer_that_does_not_load_leaves_the_question_to_whoever_comes_next(dies: bool) -> None:
    app = fresh_app()

    @app.agent
    async def auction() -> int:
        bid: Bid = await perdure.interrupt("how much?", schema=Bid, name="bid")
        return bid.cents

    async def main() -> None:
        async with app:
            async with working(app) as worker:
                handle = await app.start(auction, thread_id="lot")
                (first,) = (await asked(app, handle)).values()
                await app.resume(first, {"cents": -1})
                second = await _other_than(app, handle, first)
                await parked(handle)
                if dies:
                    await crash(app, worker)
            async with working(app):
                assert second.id != first and (second.name, second.payload) == ("bid", "how much?")
                with pytest.raises(AlreadyAnswered):
                    await app.resume(first, {"cents": 5})
                await app.resume("lot", {"cents": -2})  # by the thread: it is the one question that is open
                third = await _other_than(app, handle, second.id)
                await app.resume(third.id, {"cents": 3})
                assert await handle.result() == 3

    asyncio.run(main())


def test_an_answer_that_does_not_load_gives_no_more_time() -> None:
    app = fresh_app()

    @app.agent
    async def auction() -> str:
        try:
            await perdure.interrupt("how much?", schema=Bid, timeout=1.0)
        except TimedOut:
            return "nobody"
        return "somebody"

    async def main() -> None:
        async with app, working(app):
            handle = await app.start(auction)
            first = await _other_than(app, handle, "")
            await app.resume(first.id, {"cents": -1})
            assert await handle.result() == "nobody"
            rows = await app.interrupts(run_id=handle.run_id, state=None)
            assert [(row.state, row.expires_at) for row in rows] == [
                ("answered", first.expires_at), ("expired", first.expires_at),
            ]  # fmt: skip

    asyncio.run(main())


def test_a_branch_that_is_cancelled_withdraws_a_question_that_was_asked_again() -> None:
    app = fresh_app()

    @app.agent
    async def auction() -> str:
        bid = asyncio.create_task(perdure.interrupt("how much?", schema=Bid))
        await perdure.receive(str)
        bid.cancel()
        await asyncio.wait([bid])
        await perdure.receive(str)
        return "closed"

    async def main() -> None:
        async with app, working(app):
            handle = await app.start(auction, thread_id="lot")
            (first,) = (await asked(app, handle)).values()
            await app.resume(first, {"cents": -1})
            await _other_than(app, handle, first)
            await app.send("lot", "enough")

            async def withdrawn() -> bool:
                return await app.interrupts(run_id=handle.run_id) == []

            await until(withdrawn, "the question is withdrawn")
            await parked(handle)
            await app.send("lot", "go")
            assert await handle.result() == "closed"
            rows = await app.interrupts(run_id=handle.run_id, state=None)
            assert [row.state for row in rows] == ["answered", "withdrawn"]

    asyncio.run(main())


def test_a_default_that_the_type_itself_refuses_is_refused_where_it_is_given() -> None:
    app = fresh_app()

    @app.agent
    async def auction() -> str:
        try:
            await perdure.interrupt("?", schema=Bid, timeout=1, on_timeout=perdure.Default({"cents": -1}))
        except (InvalidAnswer, perdure.NotSerializable) as error:
            return str(error)
        return "taken"

    async def main() -> None:
        async with app, working(app):
            handle = await app.start(auction)
            assert "not negative" in await handle.result()

    asyncio.run(main())
