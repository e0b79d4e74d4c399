"""Handing over to sinks: in the outbox with the step that says so, and at the sink after that, under one key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure import NotInRun, OutboxFull, StepFailed, Undeliverable, UsageError, telemetry
from perdure.core.deliveries import DeliveryState
from tests.runtime.paying import run
from tests.runtime.sinking import Shelf, grows, outbox, settled
from tests.runtime.world import crash, fresh_app, passes, until, working


@dataclass
class Order:
    item: str
    count: int


def test_what_is_delivered_comes_to_its_sink_with_its_key_and_where_it_is_from() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf())

    @app.agent
    async def agent(item: str) -> str:
        return await perdure.deliver("shop", Order(item, 2))

    async def main() -> None:
        handle = await app.start(agent, "tea", thread_id="ann", tenant="acme")
        key = await handle.result(timeout=20)
        [row] = await settled(app)
        [got] = shelf.items
        assert (got.payload, got.key, got.partition) == ({"item": "tea", "count": 2}, key, "ann")
        assert (got.run_id, got.thread_id, got.agent, got.tenant) == (handle.run_id, "ann", "agent", "acme")
        assert (got.id, got.attempt, got.sink) == (f"d{row.id}", 1, "shop")
        assert (row.attempts, row.error, row.worker) == (1, None, None)

    run(app, main)
    assert shelf.closed == 1


def test_a_replay_hands_over_nothing_again_and_has_the_same_key() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf())
    keys: list[str] = []

    @app.agent
    async def agent() -> None:
        keys.append(await perdure.deliver("shop", "tea"))
        await perdure.sleep(0.05)

    async def main() -> None:
        handle = await app.start(agent)
        await handle.result(timeout=20)
        await settled(app)
        assert len(await outbox(app)) == 1

    run(app, main)
    assert (len(keys), len(set(keys))) == (2, 1)
    assert shelf.payloads == ["tea"]


def test_a_key_of_ones_own_is_delivered_once_whoever_says_it() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf())
    other = app.sink("other", Shelf())

    @app.agent
    async def agent(what: str) -> str:
        await perdure.deliver("other", what, key="order-7")
        return await perdure.deliver("shop", what, key="order-7")

    async def main() -> None:
        for what in ("tea", "coffee"):
            handle = await app.start(agent, what)
            assert await handle.result(timeout=20) == "order-7"
        await settled(app, 2)
        assert [row.sink for row in await outbox(app)] == ["other", "shop"]

    run(app, main)
    assert (shelf.payloads, other.payloads) == (["tea"], ["tea"])


def test_one_partition_is_in_order_also_past_failures_and_others_do_not_wait_for_it() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf(*[ConnectionError("away")] * 2))

    @app.agent
    async def agent() -> None:
        for number in range(5):
            await perdure.deliver("shop", number, partition="p")
        await perdure.deliver("shop", "elsewhere", partition="q")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await settled(app, 6)

    run(app, main)
    assert [payload for payload in shelf.payloads if payload != "elsewhere"] == [0, 1, 2, 3, 4]
    assert len({item.key for item in shelf.tries}) == 6, "tries of one delivery have one key"


def test_a_sink_that_hangs_or_fails_holds_up_neither_the_run_nor_another_sink() -> None:
    app = fresh_app()
    hung = app.sink("hung", Shelf(concurrency=2))
    hung.gate = asyncio.Event()
    broken = app.sink("broken", Shelf(*[ConnectionError("HTTP 500")] * 1000, retry=perdure.Retry(attempts=1000)))
    well = app.sink("well", Shelf())

    @app.agent
    async def agent(number: int) -> int:
        for sink in ("hung", "broken", "well"):
            await perdure.deliver(sink, number)
        return number

    async def main() -> None:
        handles = [await app.start(agent, number) for number in range(20)]
        assert [await handle.result(timeout=20) for handle in handles] == list(range(20))
        await grows(lambda: len(well.items), 20)
        assert hung.most_at_once == 2, "as many as it takes at once"
        assert hung.gate is not None
        hung.gate.set()
        await grows(lambda: len(hung.items), 20)

    run(app, main)
    assert sorted(hung.payloads) == sorted(well.payloads) == list(range(20))
    assert broken.items == []


def test_what_takes_too_long_is_broken_off_and_tried_again() -> None:
    app = fresh_app()
    slow = app.sink("slow", Shelf(timeout_s=0.02))
    slow.gate = asyncio.Event()

    @app.agent
    async def agent() -> None:
        await perdure.deliver("slow", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await grows(lambda: len(slow.tries), 2)
        [row] = await outbox(app)
        assert "did not take it within 0.02 s" in (row.error or "")
        slow.timeout_s = 20
        assert slow.gate is not None
        slow.gate.set()
        await settled(app)

    run(app, main)


def test_what_has_been_tried_as_often_as_it_may_is_dead_and_the_next_of_its_partition_goes_on() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf(*[ConnectionError("HTTP 500")] * 4))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "first")
        await perdure.deliver("shop", "second")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await settled(app)
        [dead] = await settled(app, state=DeliveryState.DEAD)
        assert (dead.attempts, dead.error) == (4, "ConnectionError: HTTP 500")
        client = await app._client()
        await client.store.redeliver([dead.id])
        await settled(app, 2)

    run(app, main)
    assert shelf.payloads == ["second", "first"]


def test_what_its_sink_refuses_for_good_is_dead_at_once() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf(Undeliverable("it is too large")))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        [dead] = await settled(app, state=DeliveryState.DEAD)
        assert (dead.attempts, dead.error) == (1, "Undeliverable: it is too large")

    run(app, main)
    assert len(shelf.tries) == 1


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError("inside"), ValueError("odd")])
def test_a_sink_that_breaks_in_any_way_is_tried_again(error: BaseException) -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf(error))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await settled(app)

    run(app, main)
    assert [item.attempt for item in shelf.tries] == [1, 2]


def test_what_a_server_asks_for_is_waited_for() -> None:
    class BusyError(Exception):
        status_code = 429
        headers = {"Retry-After": "0.3"}

    app = fresh_app()
    shelf = app.sink("shop", Shelf(BusyError()))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await grows(lambda: len(shelf.tries), 1)

        async def put_off() -> bool:
            [row] = await outbox(app)
            return row.settled_at is not None

        await until(put_off, "it is put off")
        [row] = await outbox(app)
        assert row.due_at - (row.settled_at or 0) >= 300_000
        await settled(app)

    run(app, main)


def test_a_delivery_outlives_the_worker_that_had_it() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf())
    shelf.gate = asyncio.Event()

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        async with working(app) as worker:
            await (await app.start(agent)).result(timeout=20)
            await grows(lambda: len(shelf.tries), 1)
            await crash(app, worker)
            assert shelf.gate is not None
            shelf.gate.set()
            [row] = await settled(app)
            assert row.attempts == 2

    asyncio.run(main())
    assert len({item.key for item in shelf.tries}) == 1


def test_a_worker_that_drains_lets_what_is_in_flight_end_and_claims_nothing_more() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf())
    shelf.gate = gate = asyncio.Event()

    @app.agent
    async def agent() -> None:
        for _ in range(2):
            await perdure.deliver("shop", "tea")

    async def main() -> None:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                await (await app.start(agent)).result(timeout=20)
                await grows(lambda: len(shelf.tries), 1)
                worker.stop()
                await passes(0.1)
                gate.set()
            states = [(row.state.value, row.attempts) for row in await outbox(app)]
            assert states == [("delivered", 1), ("queued", 0)]

    asyncio.run(main())


def test_a_worker_that_hands_everything_back_at_once_calls_no_delivery_dead() -> None:
    app = fresh_app()
    shelf = app.sink("shop", Shelf(retry=perdure.Retry(attempts=1)))
    shelf.gate = asyncio.Event()
    told: list[str] = []

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                await (await app.start(agent)).result(timeout=20)
                await grows(lambda: len(shelf.tries), 1)
                worker.stop()
                worker.stop()
            [row] = await outbox(app)
            assert (row.state, row.attempts, row.error) == (DeliveryState.QUEUED, 1, None)

    deaf = telemetry.subscribe(lambda event, fields: told.append(event))
    asyncio.run(main())
    deaf()
    assert [event for event in told if event.startswith("delivery.")] == []
    assert shelf.at_once == 0, "it was broken off before its sink was closed"


def test_a_lane_that_is_full_is_a_typed_error_that_code_may_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.core.limits.LANE_MAX", 2)
    app = fresh_app()
    shelf = app.sink("shop", Shelf())
    shelf.gate = asyncio.Event()

    @app.agent
    async def agent() -> list[str]:
        told = []
        for _ in range(3):
            try:
                told.append(await perdure.deliver("shop", "tea", key=f"k{len(told)}"))
            except OutboxFull as error:
                told.append(f"{error.sink} {error.partition}")
        return told

    async def main() -> None:
        handle = await app.start(agent, thread_id="t")
        assert await handle.result(timeout=20) == ["k0", "k1", "shop t"]
        assert shelf.gate is not None
        shelf.gate.set()

    run(app, main)


def test_bad_use_is_refused_and_names_the_remedy() -> None:
    app = fresh_app()
    app.sink("shop", Shelf())

    @perdure.step
    async def inside() -> None:
        await perdure.deliver("shop", "tea")

    @app.agent
    async def agent(what: str) -> Any:
        match what:
            case "unknown":
                return await perdure.deliver("shpo", "tea")
            case "value":
                return await perdure.deliver("shop", object())
            case "key":
                return await perdure.deliver("shop", "tea", key="")
            case _:
                return await inside()

    async def main() -> None:
        for what, words in (
            ("unknown", "did you mean 'shop'"),
            ("value", "cannot be recorded"),
            ("key", "a delivery's key"),
            ("step", "inside a step's body"),
        ):
            with pytest.raises(perdure.RunFailed, match=words):
                await (await app.start(agent, what)).result(timeout=20)
        assert await outbox(app) == []

    run(app, main)
    with pytest.raises(NotInRun, match="outside of an agent"):
        asyncio.run(perdure.deliver("shop", "tea"))
    with pytest.raises(UsageError, match="already"):
        app.sink("shop", Shelf())
    with pytest.raises(UsageError, match=r"no perdure\.Sink"):
        app.sink("other", object())  # type: ignore[arg-type]
    assert StepFailed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"retry": 5}, "retry of sink"),
        ({"timeout_s": "5s"}, "timeout_s of sink"),
        ({"concurrency": 0}, "concurrency of sink"),
        ({"concurrency": True}, "concurrency of sink"),
    ],
)
def test_a_sink_whose_settings_make_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fresh_app().sink("shop", Shelf(**settings))


def test_a_sink_with_a_plain_def_is_refused() -> None:
    class Plain(perdure.Sink):
        def deliver(self, item: perdure.Outgoing) -> None:  # type: ignore[override]
            raise AssertionError("it is refused")

    with pytest.raises(UsageError, match="declare it with async def"):
        fresh_app().sink("shop", Plain())


class OddlyError(Exception):
    """Nobody can say what it says."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


class NoException(BaseException):
    """What is no `Exception`."""


class HugeError(Exception):
    """A server that asks to wait for longer than there are numbers for."""

    status_code = 503
    headers = {"Retry-After": "99999999999999"}


@pytest.mark.parametrize("error", [OddlyError(), NoException("x"), GeneratorExit(), HugeError()])
def test_whatever_a_sink_raises_its_delivery_is_put_off_and_the_others_go_on(error: BaseException) -> None:
    app = fresh_app()
    odd, well = app.sink("odd", Shelf(error)), app.sink("well", Shelf())

    @app.agent
    async def agent() -> None:
        await perdure.deliver("odd", 1)
        await perdure.deliver("well", 1)

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await grows(lambda: len(well.items), 1)

        async def is_put_off() -> bool:
            [row] = await outbox(app, sink="odd")
            return row.settled_at is not None

        await until(is_put_off, "it is put off, or delivered by now")
        [row] = await outbox(app, sink="odd")
        assert row.due_at - row.created_at < 2 * 86_400_000_000, "at most a day, whatever is asked for"

    run(app, main)
    assert len(odd.tries) >= 1


def test_a_sink_that_holds_on_to_its_cancellation_is_left_to_itself() -> None:
    app = fresh_app()
    forever = asyncio.Event()

    class Stubborn(Shelf):
        async def deliver(self, item: perdure.Outgoing) -> None:
            self.tries.append(item)
            while len(self.tries) == 1 and not forever.is_set():
                try:
                    await forever.wait()
                except asyncio.CancelledError:
                    pass

    sink = app.sink("stubborn", Stubborn(timeout_s=0.02))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("stubborn", 1)

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        await settled(app)
        forever.set()

    run(app, main)
    assert isinstance(sink, Stubborn) and len(sink.tries) == 2


def test_a_sink_that_does_not_close_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.sinks.CLOSE_S", 0.05)

    class Open(Shelf):
        async def close(self) -> None:
            await asyncio.Event().wait()

    class Broken(Shelf):
        async def close(self) -> None:
            raise GeneratorExit

    app = fresh_app()
    app.sink("open", Open())
    app.sink("broken", Broken())

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)

    run(app, main)
