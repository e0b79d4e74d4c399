"""Messages that are held: renewing fails now and then, and that is no reason to let go of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from perdure.integrations.holding import FAILURES_MAX, Holding
from tests.support.waiting import becomes

EVERY_S = 0.01


class Broker:
    """Is asked to let what is held be held for longer."""

    def __init__(self, answer: Callable[[str], None] = lambda name: None) -> None:
        self.renewed: Counter[str] = Counter()
        self.asked = 0
        self.answer = answer

    async def renew(self, names: list[str]) -> None:
        self.asked += 1
        for name in names:
            self.answer(name)
            self.renewed[name] += 1


def holding(broker: Broker, *names: str, at_once: int = 1) -> Holding[str]:
    held = Holding(broker.renew, every_s=EVERY_S, at_once=at_once)
    for name in names:
        held.add(name, name)
    return held


async def reached(count: Callable[[], int], least: int) -> None:
    async def there() -> bool:
        return count() >= least

    await becomes(there, f"{least} times")


def test_what_is_held_is_renewed_again_and_again_until_it_is_dropped() -> None:
    async def main() -> None:
        broker = Broker()
        held = holding(broker, "a", "b")
        async with held.renewed():
            await reached(lambda: min(broker.renewed["a"], broker.renewed["b"]), 2)
            held.drop("a")
            before = broker.renewed["a"]
            await reached(lambda: broker.renewed["b"], broker.renewed["b"] + 2)
            assert broker.renewed["a"] <= before + 1
        held.check()

    asyncio.run(main())


def test_a_renewal_that_fails_is_tried_again() -> None:
    errors = [ConnectionError("away")] * (FAILURES_MAX - 1)

    def answer(name: str) -> None:
        if errors:
            raise errors.pop()

    async def main() -> None:
        broker = Broker(answer)
        held = holding(broker, "a")
        async with held.renewed():
            await reached(lambda: broker.renewed["a"], 1)
            held.check()
        assert errors == []

    asyncio.run(main())


def test_after_several_failures_in_a_row_the_source_is_told_of_the_last() -> None:
    def answer(name: str) -> None:
        raise OSError("no route")

    async def main() -> None:
        broker = Broker(answer)
        held = holding(broker, "a")
        async with held.renewed():
            await reached(lambda: broker.asked, FAILURES_MAX - 1)
            await reached(lambda: broker.asked, FAILURES_MAX + 1)
            with pytest.raises(ConnectionError, match="in a row") as told:
                held.check()
        assert isinstance(told.value.__cause__, OSError)

    asyncio.run(main())


def test_a_batch_that_fails_or_hangs_takes_no_other_along() -> None:
    async def main() -> None:
        renewed: Counter[str] = Counter()

        async def renew(names: list[str]) -> None:
            if "bad" in names:
                raise ConnectionError("away")
            if "slow" in names:
                await asyncio.Event().wait()
            renewed.update(names)

        held = Holding(renew, every_s=EVERY_S, at_once=2)
        for name in ("bad", "a", "slow", "b", "c"):
            held.add(name, name)
        async with held.renewed():
            await reached(lambda: renewed["c"], 3)
        assert renewed.keys() == {"c"}

    asyncio.run(main())


def test_a_renewal_that_was_cancelled_inside_is_a_failure_like_any_other() -> None:
    async def main() -> None:
        def answer(name: str) -> None:
            raise asyncio.CancelledError

        broker = Broker(answer)
        held = holding(broker, "a")
        async with held.renewed():
            await reached(lambda: broker.asked, FAILURES_MAX + 1)
            with pytest.raises(ConnectionError):
                held.check()

    asyncio.run(main())
