"""The outbox under `kill -9` and a receiver of every mood: nothing lost, each under one key, no run waits for it."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterator

import pytest

from perdure import App, Handle
from perdure.core.deliveries import Delivery, DeliveryFilter, DeliveryState
from perdure.store.protocol import Store
from tests.support.delivering import POINTS, RECEIVER, app_on
from tests.support.processes import Fleet
from tests.support.receiver import Receiver, receiving
from tests.support.waiting import becomes

RUNS = int(os.environ.get("PERDURE_TEST_DELIVERIES", "60"))
KILLS = 50 if RUNS >= 1000 else 8
WORKERS = 3


@pytest.fixture
def receiver(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as made:
        monkeypatch.setenv(RECEIVER, made.url)
        fleet.extra |= {"PERDURE_TEST_AGENTS": "tests.support.delivering", RECEIVER: made.url}
        yield made


def test_whatever_the_point_of_a_kill_it_is_delivered_under_one_key(fleet: Fleet, receiver: Receiver) -> None:
    async def main(app: App) -> None:
        async with app:
            for _ in POINTS:
                fleet.hire(concurrency=1)
            handles = [await app.start("delivering", point, point, thread_id=point) for point in POINTS]
            await becomes(lambda: _dead(fleet, len(POINTS)), "each point has killed a worker")
            fleet.hire(concurrency=20)
            keys = {handle.thread_id: await handle.result(timeout=40) for handle in handles}
            store = (await app._client()).store
            rows = await delivered(store, 4 * len(POINTS))
        for point, three in keys.items():
            mine = [row for row in rows if row.thread_id == point and not row.bill]
            assert [row.key for row in sorted(mine, key=lambda row: row.seq)] == three
            for key in three:
                times = sum(1 for item in receiver.taken if item.key == key)
                assert 1 <= times <= 1 + len(POINTS), f"{point}: so many deaths, so many tries that were not noted"
        assert_well_received(receiver, rows)

    asyncio.run(main(app_on(fleet.store_url)))


async def _dead(fleet: Fleet, count: int) -> bool:
    return len(fleet.workers) - len(fleet.alive) >= count


def test_after_random_kills_and_every_mood_nothing_is_lost_and_no_run_has_waited(
    fleet: Fleet, receiver: Receiver
) -> None:
    chance = random.Random()

    async def main(app: App) -> None:
        async with app:
            receiver.turn("broken")
            for worker in [fleet.hire(concurrency=20) for _ in range(WORKERS)]:
                worker.started()
            handles = await asyncio.gather(*(app.start("delivering", f"p{number}") for number in range(RUNS)))
            await _ended(handles)
            assert receiver.taken == [], "all runs have ended, and nothing is delivered"
            store = (await app._client()).store
            for kill in range(KILLS):
                receiver.turn(chance.choice(["well", "cut", "broken", "hung", "well"]))
                seen = len(receiver.received)
                if receiver.mood != "hung":
                    await becomes(lambda seen=seen: _came(receiver, seen + RUNS // 4), f"more came before kill {kill}")
                chance.choice(fleet.alive).kill()
                fleet.hire(concurrency=20)
            receiver.turn("well")
            sent_on: set[str] = set()
            rows = await delivered(store, 4 * RUNS, sent_on)
        assert_well_received(receiver, rows, sent_on)
        assert len(rows) == 4 * RUNS
        assert sum(row.attempts for row in rows) > len(rows), "nothing was tried twice"

    asyncio.run(main(app_on(fleet.store_url)))


async def _ended(handles: list[Handle[list[str]]]) -> None:
    for handle in handles:
        assert len(await handle.result(timeout=40)) == 3


async def _came(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) >= count or len({item.key for item in receiver.taken}) >= 4 * RUNS


async def delivered(store: Store, count: int, sent_on: set[str] | None = None) -> list[Delivery]:
    """All deliveries, once so many are delivered. Where `sent_on` is given, those that a chance has had in five dead
    workers' hands in a row are sent on, as a person would do, and their keys noted there."""
    found: list[Delivery] = []

    async def all_are() -> bool:
        found.clear()
        while page := await store.deliveries(DeliveryFilter(after=found[-1].id if found else None, limit=1000)):
            found.extend(page)
        dead = [row for row in found if row.state is DeliveryState.DEAD]
        assert not dead or sent_on is not None, dead[:3]
        if dead and sent_on is not None:
            assert all("workers died with it" in str(row.error) for row in dead), dead[:3]
            sent_on.update(row.key for row in dead)
            assert len(sent_on) <= WORKERS, "whoever was in their hands beside these was given up with them"
            await store.redeliver([row.id for row in dead])
        return sum(row.state is DeliveryState.DELIVERED for row in found) >= count

    await becomes(all_are, f"{count} are delivered", within_s=50)
    return found


def assert_well_received(receiver: Receiver, rows: list[Delivery], sent_on: Collection[str] = ()) -> None:
    """What was taken is what is in the outbox: each key with one payload, each lane in its order (but for what was sent
    on, to its end), one bill a run."""
    payloads: dict[str, set[str]] = defaultdict(set)
    for item in receiver.taken:
        payloads[item.key].add(repr(item.payload))
    assert {row.key for row in rows} == payloads.keys()
    assert {len(each) for each in payloads.values()} == {1}
    lanes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.seq):
        if row.key not in sent_on:
            lanes[row.sink, row.partition].append(row.key)
    first = list(dict.fromkeys(item.key for item in receiver.taken))
    for lane, keys in lanes.items():
        assert [key for key in first if key in set(keys)] == keys, lane
    bills = {row.run for row in rows if row.bill}
    assert len([row for row in rows if row.bill]) == len(bills) == len({row.run for row in rows})
    said = [item.payload for item in receiver.taken if item.path == "/bills"]
    assert {item["usage"]["tokens"] for item in said} == {"30"}
