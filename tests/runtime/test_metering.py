"""Meters and bills: what was used is in the ledger with what used it, once."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

import perdure
from perdure import NotInRun, Retry, RunFailed, UsageError
from perdure.core.meters import UsageBy, UsageFilter, quantity
from tests.runtime.paying import Provider, run
from tests.runtime.sinking import QUICK, Shelf, grows, outbox
from tests.runtime.world import crash, fresh_app, working


async def totals(app: Any, **where: Any) -> dict[str, Decimal]:
    client = await app._client()
    rows = await client.store.usage(UsageFilter(UsageBy.RUN, **where))
    return {row.name: quantity(row.quantity) for row in rows}


def test_what_a_step_uses_is_in_the_ledger_with_its_record_and_a_replay_adds_nothing() -> None:
    app = fresh_app()

    @perdure.step
    async def think(n: int) -> int:
        perdure.meter("tokens", 100 + n, model="small")
        perdure.meter("usd", 0.1)
        return n

    @app.agent
    async def agent() -> None:
        await think(1)
        perdure.meter("answers", 1)
        await perdure.sleep(0.05)
        await think(2)
        perdure.meter("answers", 1)

    async def main() -> None:
        handle = await app.start(agent)
        await handle.result(timeout=20)
        assert await totals(app) == {"answers": 2, "tokens": 203, "usd": Decimal("0.2")}
        rows = await (await app._client()).store.meters(int(handle.run_id[1:]))
        assert [(row.key, row.attempt, row.name) for row in rows] == [
            ("meter", 1, "answers"),
            ("meter#2", 1, "answers"),
            ("think", 1, "tokens"),
            ("think", 1, "usd"),
            ("think#2", 1, "tokens"),
            ("think#2", 1, "usd"),
        ]
        assert rows[2].attributes == b'{"model":"small"}'

    run(app, main)


def test_a_try_that_fails_has_used_what_it_has_used() -> None:
    app = fresh_app()
    failures = iter([ConnectionError("away"), None])

    @perdure.step(retry=QUICK)
    async def think() -> None:
        perdure.meter("tokens", 10)
        if (error := next(failures)) is not None:
            raise error

    @app.agent
    async def agent() -> None:
        await think()

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        assert await totals(app) == {"tokens": 20}

    run(app, main)


def test_a_step_that_fails_for_good_and_runs_again_after_a_retry_is_counted_each_time() -> None:
    app = fresh_app()

    @perdure.step(retry=Retry(attempts=2, delay_s=0.01))
    async def think() -> None:
        perdure.meter("tokens", 10)
        raise ConnectionError("away")

    @app.agent
    async def agent() -> None:
        await think()

    async def main() -> None:
        handle = await app.start(agent)
        for times in (1, 2):
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            assert await totals(app) == {"tokens": 20 * times}
            if times == 1:
                await app.retry(handle.run_id)

    run(app, main)


@pytest.mark.parametrize("crashes", [False, True])
def test_c39_usage_inside_a_step_adds_up_to_the_same_with_and_without_a_crash(crashes: bool) -> None:
    app = fresh_app()
    gate = asyncio.Event()
    begun: list[int] = []

    @perdure.step
    async def think(n: int) -> None:
        perdure.meter("tokens", 1000)
        begun.append(n)
        if n == 2:
            await gate.wait()

    @app.agent
    async def agent() -> None:
        for n in range(4):
            await think(n)

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await grows(lambda: len(begun), 3)
            if crashes:
                await crash(app, worker)
            gate.set()
            await handle.result(timeout=20)
            assert await totals(app) == {"tokens": 4000}

    asyncio.run(main())
    assert len(begun) >= 4 + crashes


def test_effects_their_questions_and_their_undos_are_metered_too() -> None:
    app = fresh_app()
    provider = Provider("lost")

    async def ask(key: str, args: dict[str, Any]) -> Any:
        perdure.meter("asked", 1)
        return await provider.ask(key, args)

    async def undo(receipt: str) -> None:
        perdure.meter("undone", 1)

    async def pay() -> str:
        perdure.meter("calls", 1)
        return await provider.charge("tea")

    charge = perdure.effect(pay, verify=ask, undo=undo, retry=QUICK)

    @app.agent
    async def agent() -> None:
        await charge()
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        assert await totals(app) == {"asked": 1, "calls": 1, "undone": 1}

    run(app, main)


def test_a_body_in_a_thread_meters_as_well() -> None:
    app = fresh_app()

    @perdure.step
    def think() -> None:
        perdure.meter("tokens", 7)

    @app.agent
    async def agent() -> None:
        await think()

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        assert await totals(app) == {"tokens": 7}

    run(app, main)


@pytest.mark.parametrize(
    "quantity", [-1, float("nan"), float("inf"), "3", True, None, 10**10, Decimal("NaN"), Decimal("sNaN")]
)
def test_a_quantity_that_is_none_is_refused(quantity: Any) -> None:
    with pytest.raises(UsageError, match="a quantity is a number"):
        perdure.meter("tokens", quantity)


def test_bad_use_is_refused() -> None:
    with pytest.raises(NotInRun, match="outside of a run"):
        perdure.meter("tokens", 1)
    with pytest.raises(UsageError, match="a meter's name"):
        perdure.meter("", 1)
    with pytest.raises(UsageError, match="attribute model"):
        perdure.meter("tokens", 1, model=["a"])
    with pytest.raises(UsageError, match="at most 1024"):
        perdure.meter("tokens", 1, model="a" * 2000)


# -- bills -----------------------------------------------------------------------------------------------------------


def test_each_run_closes_with_one_bill_that_says_what_it_has_used() -> None:
    app = fresh_app(billing="bills")
    bills = app.sink("bills", Shelf())

    @perdure.step
    async def think() -> None:
        perdure.meter("usd", Decimal("0.000000125"))

    @app.agent
    async def child() -> None:
        await think()

    @app.agent
    async def agent() -> None:
        await think()
        await perdure.call(child)
        await perdure.sleep(0.02)

    async def main() -> None:
        handle = await app.start(agent, tenant="acme")
        await handle.result(timeout=20)
        await grows(lambda: len(bills.items), 2)
        by_run = {item.run_id: item for item in bills.items}
        bill = by_run[handle.run_id]
        assert bill.payload["usage"] == {"usd": "1.25E-7"} or bill.payload["usage"] == {"usd": "0.000000125"}
        assert (bill.payload["state"], bill.payload["number"], bill.payload["tenant"]) == ("completed", 1, "acme")
        assert bill.key.startswith("bill-")
        assert len({item.key for item in bills.items}) == 2

    run(app, main)
    assert len(bills.items) == 2


def test_a_run_that_goes_on_after_its_end_has_a_second_bill_for_what_came_since() -> None:
    app = fresh_app(billing="bills")
    bills = app.sink("bills", Shelf())
    failures = iter([ValueError("no"), None])

    @perdure.step
    async def think() -> None:
        perdure.meter("tokens", 5)

    @perdure.step
    async def fail() -> None:
        perdure.meter("tries", 1)
        if (error := next(failures)) is not None:
            raise error

    @app.agent
    async def agent() -> None:
        await think()
        await fail()

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        await grows(lambda: len(bills.items), 1)
        await app.retry(handle.run_id)
        await handle.result(timeout=20)
        await grows(lambda: len(bills.items), 2)
        said = [(item.payload["state"], item.payload["number"], item.payload["usage"]) for item in bills.items]
        assert said == [("failed", 1, {"tokens": "5", "tries": "1"}), ("completed", 2, {"tries": "1"})]
        first, second = (item.key for item in bills.items)
        assert second == f"{first}:2"

    run(app, main)


def test_a_run_that_is_cancelled_before_it_begins_has_its_bill_and_an_app_without_billing_has_none() -> None:
    app = fresh_app(billing="bills")
    bills = app.sink("bills", Shelf())
    plain = fresh_app()

    @app.agent
    async def agent() -> None:
        pass

    @plain.agent(name="agent")
    async def unbilled() -> None:
        pass

    async def main() -> None:
        handle = await app.start(agent, delay="1h")
        await handle.cancel(reason="not needed")
        await grows(lambda: len(bills.items), 1)
        assert (bills.payloads[0]["state"], bills.payloads[0]["usage"]) == ("cancelled", {})

    run(app, main)

    async def other() -> None:
        await (await plain.start(unbilled)).result(timeout=20)
        assert await outbox(plain) == []

    run(plain, other)


def test_bills_need_a_sink() -> None:
    app = fresh_app(billing="bills")

    @app.agent
    async def agent() -> None:
        pass

    async def main() -> None:
        async with app:
            await app.start(agent)

    with pytest.raises(UsageError, match=r"app\.sink\('bills'"):
        asyncio.run(main())
