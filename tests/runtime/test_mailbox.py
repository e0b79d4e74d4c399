"""Mailboxes: every message is received once, in order, and none is lost between those who read them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure import Again, App, Handle, MailboxFull, NotFound, RunFailed, TimedOut
from perdure.core import limits
from perdure.core.changes import CloseWait
from tests.runtime.acting import begun, mark
from tests.runtime.world import crash, fresh_app, idle, keys_of, parked, result_of, until, working


@dataclass
class Order:
    item: str


@dataclass
class Stop:
    why: str


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def contents(app: App, thread_id: str) -> list[Any]:
    return [message.message for message in await app.thread(thread_id).mailbox()]


# -- receiving -----------------------------------------------------------------------------------------------------


def test_messages_are_received_in_the_order_in_which_they_came() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        return [await perdure.receive() for _ in range(20)]

    async def main() -> list[int]:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent, thread_id="t")
            await parked(handle, worker)
            for number in range(20):
                await app.send("t", number)
                await idle(number % 7)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == list(range(20))


def test_a_type_picks_the_messages_of_that_type_and_leaves_the_others_in_order() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        stop = await perdure.receive(Stop)
        first = await perdure.receive(Order | Stop)
        return [stop.why, first.item, (await perdure.receive(Order)).item, await perdure.receive("str")]

    async def main() -> list[Any]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            for message in (Order("a"), "text", Order("b")):
                await app.send("t", message)
            await parked(handle, worker)
            await app.send("t", Stop("enough"))
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["enough", "a", "b", "text"]


def test_branches_that_receive_at_once_get_each_message_once() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        return list(await asyncio.gather(*(perdure.receive(int) for _ in range(10))))

    async def main() -> list[int]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            await parked(handle, worker)
            for number in range(10):
                await app.send("t", number)
                if number % 3 == 0:
                    await parked(handle) if number < 9 else None
            return await handle.result(timeout=20)

    assert sorted(asyncio.run(main())) == list(range(10))


def test_no_message_in_time_is_a_time_out_that_is_on_record() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        found: list[Any] = []
        for limit in (0.02, None):
            try:
                found.append(await perdure.receive(timeout=limit))
            except TimedOut as error:
                found.append(type(error).__name__)
                await mark("timed out")
        return found

    async def main() -> list[Any]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            await until(lambda: _has_keys(handle, ["receive", "mark"]), "the first one timed out")
            await parked(handle, worker)
            await app.send("t", None)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["TimedOut", None]
    assert begun == ["timed out"]


async def _has_keys(handle: Handle[Any], keys: list[str]) -> bool:
    return await keys_of(handle) == keys


@pytest.mark.parametrize("turns", range(0, 30, 2))
def test_a_message_and_a_time_out_at_once_lose_no_message(turns: int) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append(await perdure.receive(timeout=0.02 if not found else None))
            except TimedOut:
                found.append("timed out")
        return found

    async def main() -> list[Any]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            await parked(handle, worker)
            store = (await app._client()).store
            (wait,) = await store.waits([handle._id])
            while wait.due_at is not None and await store.now_us() < wait.due_at:
                await idle(1)
            await idle(turns)
            await app.send("t", "first")
            await app.send("t", "second")
            result: list[Any] = await handle.result(timeout=20)
            return result + await contents(app, "t")

    assert [each for each in asyncio.run(main()) if each != "timed out"] == ["first", "second"]


@pytest.mark.parametrize("turns", range(8))
def test_a_branch_that_is_cancelled_while_its_message_is_taken_loses_no_message(turns: int) -> None:
    app = fresh_app()
    leave: list[asyncio.Event] = []

    @app.agent
    async def agent() -> list[Any]:
        task = asyncio.create_task(perdure.receive())
        await leave[0].wait()
        task.cancel()
        done, _ = await asyncio.wait([task])
        return [each.result() for each in done if not each.cancelled()]

    async def main() -> list[Any]:
        leave.append(asyncio.Event())
        async with working(app) as worker:
            store = worker._tenure.store
            commit = store.commit

            async def slowly(number: int, changes: Any) -> Any:
                if any(isinstance(change, CloseWait) and change.take is not None for change in changes):
                    leave[0].set()
                    await idle(turns)
                return await commit(number, changes)

            store.commit = slowly
            handle = await app.start(agent, thread_id="t")
            await app.send("t", "the one")
            result: list[Any] = await handle.result(timeout=20)
            return result + await contents(app, "t")

    assert asyncio.run(main()) == ["the one"]


def test_a_message_is_received_once_though_its_receiver_crashes_at_once() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        return [await perdure.receive() for _ in range(15)]

    async def main() -> list[int]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            for number in range(15):
                await app.send("t", number)
                await idle(number * 3)
                if worker.id is not None and number % 2:
                    await crash(app, worker)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == list(range(15))


def test_a_super_step_does_not_find_what_the_one_before_has_taken() -> None:
    app = fresh_app()

    @app.agent
    async def agent(*, state: dict[str, list[int]]) -> Again | list[int]:
        found = state.setdefault("found", [])
        found.append(await perdure.receive(int))
        return Again() if len(found) < 50 else found

    async def main() -> list[int]:
        async with app:
            handle = await app.start(agent, thread_id="t")
            for number in range(50):
                await app.send("t", number)
            async with app.worker(poll_s=0.05):
                result: list[int] = await handle.result(timeout=20)
                assert (await handle.status()).attempt == 1
                return result

    assert asyncio.run(main()) == list(range(50))


def test_what_a_run_leaves_unread_the_next_one_on_its_thread_finds() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        return await perdure.receive()

    async def main() -> list[Any]:
        async with working(app):
            first = await app.start(agent, thread_id="t")
            for message in ("a", "b"):
                await app.send("t", message)
            results = [await first.result(timeout=20)]
            assert await contents(app, "t") == ["b"]
            results.append(await (await app.start(agent, thread_id="t")).result(timeout=20))
            assert await contents(app, "t") == []
            return results

    assert asyncio.run(main()) == ["a", "b"]


def test_a_large_message_arrives_whole_and_replays_whole() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        first = await perdure.receive(bytes)
        second = await perdure.receive()
        return [len(first), second]

    async def main() -> list[int]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            await parked(handle, worker)
            await app.send("t", bytes(200_000))
            await until(lambda: _has_keys(handle, ["receive"]), "it has the first")
            await parked(handle, worker)
            await app.send("t", 7)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == [200_000, 7]


# -- dead letters --------------------------------------------------------------------------------------------------


def test_a_message_that_does_not_load_is_put_among_the_dead_letters_and_may_come_back() -> None:
    app = fresh_app()

    @dataclass
    class Old:
        amount: str

    Old.__name__ = Old.__qualname__ = "Order"

    @app.agent
    async def agent() -> list[str]:
        return [(await perdure.receive(Order)).item, (await perdure.receive(Order)).item]

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="t")
            await app.send("t", Old("three"))
            await app.send("t", Order("good"))
            await until(lambda: _has_keys(handle, ["receive"]), "it has the good one")
            await parked(handle, worker)
            (dead,) = await app.dead_letters("t")
            assert dead.message == {"amount": "three"}
            assert dead.dead is not None
            assert "item" in dead.dead
            await app.replay_dead_letter(dead.id)
            await until(lambda: _is_dead_again(app), "it is dead again")
            await parked(handle, worker)
            await app.send("t", Order("better"))
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["good", "better"]


async def _is_dead_again(app: App) -> bool:
    return len(await app.dead_letters("t")) == 1 and await contents(app, "t") == []


# -- sending -------------------------------------------------------------------------------------------------------


def test_an_agent_sends_in_order_and_not_again_on_replay() -> None:
    app = fresh_app()

    @app.agent
    async def reader() -> list[Any]:
        found: list[Any] = []
        while (message := await perdure.receive()) != "end":
            found.append(message)
        return found

    @app.agent
    async def writer() -> None:
        for number in range(5):
            await perdure.send("reader", number)
        await perdure.interrupt(name="q")
        await perdure.send("reader", "end")

    async def main() -> list[Any]:
        async with working(app) as worker:
            reading = await app.start(reader, thread_id="reader")
            writing = await app.start(writer, thread_id="writer")
            await until(lambda: _asks(app, writing), "it asks")
            await parked(writing)
            await crash(app, worker)
            await app.resume("writer", 1)
            await writing.result(timeout=20)
            return await reading.result(timeout=20)

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


async def _asks(app: App, handle: Handle[Any]) -> bool:
    return bool(await app.interrupts(run_id=handle.run_id))


def test_two_agents_talk_to_each_other() -> None:
    app = fresh_app()

    @app.agent
    async def player(other: str, serves: bool) -> int:
        if serves:
            await perdure.send(other, 0)
        while (ball := await perdure.receive(int)) < 30:
            await perdure.send(other, ball + 1)
        if ball == 30:
            await perdure.send(other, 31)
        return int(ball)

    async def main() -> list[int]:
        async with app:
            handles = [
                await app.start(player, "b", False, thread_id="a"),
                await app.start(player, "a", True, thread_id="b"),
            ]
            async with app.worker(poll_s=30.0):
                return [await handle.result(timeout=20) for handle in handles]

    assert sorted(asyncio.run(main())) == [30, 31]


def test_a_message_to_nobody_is_the_senders_error_and_stays_it() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        try:
            await perdure.send("nobody", 1)
        except NotFound as error:
            said = str(error)
        await perdure.interrupt(name="q")
        return said

    async def main() -> str:
        async with working(app) as worker:
            with pytest.raises(NotFound):
                await app.send("nobody", 1)
            handle = await app.start(agent, thread_id="t")
            await parked(handle, worker)
            await app.start(agent, thread_id="nobody")
            await app.resume("t", 1)
            return await handle.result(timeout=20)

    assert "nobody" in asyncio.run(main())


@pytest.mark.parametrize("on_full", ["block", "reject"])
def test_a_full_mailbox_blocks_its_sender_parked_or_is_its_error(on_full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAILBOX_MAX", 3)
    app = fresh_app()

    @app.agent
    async def reader() -> list[Any]:
        await perdure.interrupt(name="begin")
        return [await perdure.receive() for _ in range(4)]

    @app.agent
    async def writer() -> str:
        for number in range(4):
            await perdure.send("reader", number, on_full=on_full)
        return "all sent"

    async def main() -> list[Any]:
        async with working(app) as worker:
            reading = await app.start(reader, thread_id="reader")
            await parked(reading, worker)
            writing = await app.start(writer, thread_id="writer")
            if on_full == "reject":
                with pytest.raises(RunFailed) as failed:
                    await writing.result(timeout=20)
                assert failed.value.error.type.endswith(MailboxFull.__name__)
                return await contents(app, "reader")
            await parked(writing, worker)
            assert await contents(app, "reader") == [0, 1, 2]
            with pytest.raises(MailboxFull):
                await app.send("reader", "too much")
            await app.resume("reader", 1)
            assert await writing.result(timeout=20) == "all sent"
            return await reading.result(timeout=20)

    assert asyncio.run(main()) == [0, 1, 2, 3][: 4 if on_full == "block" else 3]


def test_a_sender_that_is_blocked_may_give_up() -> None:
    app = fresh_app()

    @app.agent
    async def reader() -> None:
        await perdure.interrupt(name="begin")

    @app.agent
    async def writer() -> str:
        try:
            async with perdure.timeout(0.03):
                await perdure.send("reader", "too much")
        except TimedOut:
            return "gave up"
        return "sent"

    async def main() -> str:
        async with working(app) as worker:
            reading = await app.start(reader, thread_id="reader")
            await parked(reading, worker)
            await app.send("reader", "fills it")
            return await (await app.start(writer)).result(timeout=20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAILBOX_MAX", 1)
        assert asyncio.run(main()) == "gave up"


def test_a_message_may_be_what_two_runs_agree_on() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> dict[str, Any]:
        await perdure.send(perdure.current().thread_id, {"to": "myself", "n": [1, 2]})
        found: dict[str, Any] = await perdure.receive()
        return found

    assert result_of(app, agent) == {"to": "myself", "n": [1, 2]}
