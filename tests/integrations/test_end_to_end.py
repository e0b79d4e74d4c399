"""A queue plus a state store: what comes from a broker starts runs, what they deliver goes back to it; whatever becomes
of the broker meanwhile, each thing that came has one run, and each delivery arrives under its one key."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel

import perdure
from perdure import App, Retry
from perdure.core.deliveries import DeliveryFilter, DeliveryState
from perdure.integrations import RabbitSink, RabbitSource
from perdure.testing.proxy import proxy
from tests.support.brokers import Rabbit
from tests.support.waiting import becomes

SOON = Retry(attempts=1_000, delay_s=0.05, max_delay_s=0.3)


def workshop(store: str, source: RabbitSource, sink: RabbitSink) -> App:
    """Each order that comes is made by a run, which delivers two parts of it."""
    app = App("workshop", store=store)

    @perdure.step
    async def make(order: int) -> int:
        return order * 10

    @app.agent
    async def order(order: int) -> int:
        made = await make(order)
        for part in range(2):
            await perdure.deliver("parts", {"order": order, "part": part, "made": made})
        return made

    app.source("orders", source, start=order)
    app.sink("parts", sink)
    return app


async def publish(channel: AbstractChannel, name: str, orders: range, *, times: int = 1) -> None:
    for number in orders:
        for _ in range(times):
            message = aio_pika.Message(
                msgspec.json.encode(number), message_id=f"order-{number}",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )  # fmt: skip
            await channel.default_exchange.publish(message, name)


async def taken(rabbit: Rabbit, name: str) -> dict[str, list[Any]]:
    """What is in the queue of parts: payloads by message id, taken out."""
    found: dict[str, list[Any]] = {}
    async with await aio_pika.connect(rabbit.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        while (message := await queue.get(fail=False)) is not None:
            await message.ack()
            found.setdefault(str(message.message_id), []).append(msgspec.json.decode(message.body))
    return found


async def all_delivered(app: App, count: int) -> bool:
    store = (await app._client()).store
    return len(await store.deliveries(DeliveryFilter(state=DeliveryState.DELIVERED, limit=1000))) == count


def assert_whole(found: dict[str, list[Any]], orders: int) -> None:
    """Both parts of each order, each under one key with one payload."""
    assert len(found) == 2 * orders
    assert all(len({repr(payload) for payload in payloads}) == 1 for payloads in found.values())
    assert Counter(payloads[0]["order"] for payloads in found.values()) == dict.fromkeys(range(orders), 2)


def test_a_broker_that_is_killed_and_restarted_loses_nothing_and_no_run_waits_for_it(
    rabbit: Rabbit, name: str, tmp_path: Path
) -> None:
    async def main() -> None:
        source = RabbitSource(rabbit.url, name)
        app = workshop(
            f"sqlite:///{tmp_path}/runs.db", source, RabbitSink(rabbit.url, routing_key=f"{name}-parts", retry=SOON)
        )
        async with await aio_pika.connect(rabbit.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True)
            await channel.declare_queue(f"{name}-parts", durable=True)
            await publish(channel, name, range(20), times=2)
        async with app, app.worker(poll_s=0.1):
            await becomes(lambda: _started(app, 20), "every order has its run")
            rabbit.kill()
            late = [await app.start("order", number, key=f"orders:order-{number}") for number in range(20, 30)]
            assert [await handle.result(timeout=20) for handle in late] == [10 * number for number in range(20, 30)]
            assert not await all_delivered(app, 60), "nobody was there to take the last of them"
            rabbit.start()
            await becomes(lambda: all_delivered(app, 60), "all is delivered", within_s=40)
            runs = await app.runs(limit=100)
            assert (len(runs), {run.state.value for run in runs}) == (30, {"completed"})
        assert_whole(await taken(rabbit, f"{name}-parts"), 30)

    asyncio.run(main())


async def _started(app: App, count: int) -> bool:
    return len(await app.runs(limit=100)) >= count


def test_connections_that_are_cut_before_the_confirmation_repeat_a_delivery_under_its_key(
    rabbit: Rabbit, name: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with await aio_pika.connect(rabbit.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True)
            await channel.declare_queue(f"{name}-parts", durable=True)
            await publish(channel, name, range(50))
        async with proxy(("127.0.0.1", rabbit.port)) as line:
            sink = RabbitSink(rabbit.url_at(line.port), routing_key=f"{name}-parts", timeout=1, retry=SOON)
            app = workshop(f"sqlite:///{tmp_path}/runs.db", RabbitSource(rabbit.url_at(line.port), name), sink)
            async with app, app.worker(poll_s=0.1):
                await becomes(lambda: _some_delivered(app, 5), "some are delivered")
                line.lose_answers()
                await asyncio.wait_for(line.answer_lost.wait(), 20)
                line.cut()
                await becomes(lambda: _some_delivered(app, 60), "more are delivered")
                line.cut()
                await becomes(lambda: all_delivered(app, 100), "all is delivered", within_s=40)
                runs = await app.runs(limit=100)
                assert (len(runs), {run.state.value for run in runs}) == (50, {"completed"})
        found = await taken(rabbit, f"{name}-parts")
        assert_whole(found, 50)
        assert any(len(payloads) > 1 for payloads in found.values()), "none came twice"

    asyncio.run(main())


async def _some_delivered(app: App, count: int) -> bool:
    store = (await app._client()).store
    return len(await store.deliveries(DeliveryFilter(state=DeliveryState.DELIVERED, limit=1000))) >= count


def test_a_queue_that_is_full_takes_the_rest_when_it_has_room(rabbit: Rabbit, name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio_pika.connect(rabbit.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True)
            full = {"x-max-length": 3, "x-overflow": "reject-publish"}
            parts = await channel.declare_queue(f"{name}-parts", durable=True, arguments=full)
            await publish(channel, name, range(5))
            sink = RabbitSink(rabbit.url, routing_key=f"{name}-parts", retry=SOON)
            app = workshop(f"sqlite:///{tmp_path}/runs.db", RabbitSource(rabbit.url, name), sink)
            found: dict[str, list[Any]] = {}
            async with app, app.worker(poll_s=0.1):
                await becomes(lambda: _completed(app, 5), "all runs have ended")
                assert not await all_delivered(app, 10), "there is no room"

                async def emptied() -> bool:
                    while (message := await parts.get(fail=False)) is not None:
                        await message.ack()
                        found.setdefault(str(message.message_id), []).append(msgspec.json.decode(message.body))
                    return await all_delivered(app, 10) and len(found) == 10

                await becomes(emptied, "all of it came through")
        assert_whole(found, 5)

    asyncio.run(main())


async def _completed(app: App, count: int) -> bool:
    return len(await app.runs(state="completed", limit=100)) == count
