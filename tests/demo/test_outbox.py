"""`perdure demo outbox`: two calls, two tries, one charge; and where it is not one, it says so."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import App, DeliveryInfo, Undeliverable
from perdure.core.deliveries import DeliveryState
from perdure.demo.billing import Entry, Line, read_book
from perdure.demo.outbox import Said, promises
from perdure.demo.processes import BillingService
from perdure.demo.shop import BILLING, BillingSink, sell
from perdure.runtime.sinks import Outgoing
from tests.support.postgres import shared

NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEY = "charge:order-7"


def delivery(state: DeliveryState = DeliveryState.DELIVERED, *, attempts: int = 2) -> DeliveryInfo:
    return DeliveryInfo(
        id="d9", run_id="r1", thread_id="r1", agent="sell", sink=BILLING, partition="r1", seq=1, key=KEY, bill=False,
        payload={"account": "ann", "cents": 1900}, state=state, ready=True, attempts=attempts, due_at=NOW,
        created_at=NOW, settled_at=NOW, error=None, worker=None, tenant=None,
    )  # fmt: skip


def line(entry: Entry, key: str = KEY) -> Line:
    return Line(entry, key, "ann", 1900, "receipt 1")


SAID = Said((KEY, KEY), 2, (delivery(),), (line(Entry.CHARGE), line(Entry.REPEAT)))


def play(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Play it in a process of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    command = [sys.executable, "-m", "perdure", "demo", "outbox", "--keep", str(folder), *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.timeout(120)
def test_a_repeated_tool_call_and_a_repeated_delivery_charge_once(tmp_path: Path) -> None:
    played = play(tmp_path)

    assert played.returncode == 0, played.stdout + played.stderr
    assert "the tool was called 2 times, each on record, under 1 key" in played.stdout
    assert "the store has 1 delivery, tried 2 times, delivered" in played.stdout
    assert "the service's file has 1 charge" in played.stdout
    (folder,) = tmp_path.iterdir()
    assert [each.entry.value for each in read_book(folder / "billing.jsonl")] == ["charge", "repeat"]


@pytest.mark.timeout(120)
@pytest.mark.postgres
def test_a_store_that_has_had_a_scene_may_have_another_and_its_password_is_not_shown(tmp_path: Path) -> None:
    url = shared().fresh_url().replace("postgres@", "postgres:hush@", 1)
    assert "hush" in url
    for number in range(2):
        played = play(tmp_path / str(number), "--store", url)

        assert played.returncode == 0, played.stdout + played.stderr
        assert "hush" not in played.stdout + played.stderr


def test_its_report_holds_where_all_sides_say_so() -> None:
    assert all(promise.holds for promise in promises(SAID))


@pytest.mark.parametrize(
    "said",
    [
        replace(SAID, lines=(line(Entry.CHARGE), line(Entry.CHARGE, "another"))),
        replace(SAID, lines=(line(Entry.CHARGE), line(Entry.CHARGE))),
        replace(SAID, lines=()),
        replace(SAID, keys=(KEY, "another")),
        replace(SAID, records=1),
        replace(SAID, deliveries=(delivery(), delivery())),
        replace(SAID, deliveries=(delivery(attempts=1),)),
        replace(SAID, deliveries=(delivery(DeliveryState.DEAD),)),
        replace(SAID, deliveries=()),
    ],
    ids=[
        "two keys charged", "one key charged twice", "nothing charged", "two keys told", "a call without a record",
        "two deliveries", "no second try", "a dead delivery", "no delivery",
    ],
)  # fmt: skip
def test_its_report_does_not_hold_where_one_side_says_otherwise(said: Said) -> None:
    assert not all(promise.holds for promise in promises(said))


def test_the_shops_agent_works_without_a_scene_and_puts_one_delivery_into_the_outbox(tmp_path: Path) -> None:
    service = BillingService(tmp_path)

    async def main() -> None:
        app = App("shop", store=f"sqlite:///{tmp_path}/shop.db")
        app.agent(sell.fn)
        app.sink(BILLING, BillingSink(await service.begin(["--lose-every", "0"])))
        async with app, app.worker(poll_s=0.05):
            handle = await app.start("sell", "order-7", "ann", 1900)
            assert await handle.result(timeout=30) == [KEY, KEY]
            while not await app.deliveries(state="delivered"):
                await asyncio.sleep(0.02)  # the service is another process
            assert len(await app.deliveries()) == 1

    try:
        asyncio.run(main())
    finally:
        service.end()
    assert [(each.entry, each.key) for each in service.lines()] == [(Entry.CHARGE, KEY)]


def test_what_the_service_declines_is_dead_at_once_and_what_it_does_not_answer_is_not(tmp_path: Path) -> None:
    service = BillingService(tmp_path)
    item = Outgoing("d1", KEY, BILLING, "p", {"account": "ann", "cents": 1900}, "r1", "t", "sell", None, 1, NOW)

    async def main() -> None:
        sink = BillingSink(await service.begin(["--lose-every", "0"]))
        await sink.deliver(item)
        with pytest.raises(Undeliverable, match="used for another charge"):
            await sink.deliver(replace(item, payload={"account": "ann", "cents": 1}))
        service.end()
        with pytest.raises(OSError):
            await sink.deliver(item)

    try:
        asyncio.run(main())
    finally:
        service.end()
