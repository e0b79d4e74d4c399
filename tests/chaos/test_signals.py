"""What the director makes of Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from perdure.testing.chaos.signals import SIGNALS, ending_at_once, leading_to, unheard

BOTH = pytest.mark.parametrize("number", SIGNALS)


@BOTH
def test_the_first_signal_leads_on_and_the_second_ends_at_once(number: int) -> None:
    heard: list[str] = []

    async def main() -> None:
        interrupted = asyncio.Event()
        with leading_to(interrupted):
            os.kill(os.getpid(), number)
            await interrupted.wait()
            heard.append("the first")
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())

    assert heard == ["the first"]
    assert [signal.getsignal(each) for each in SIGNALS] == before


@BOTH
def test_where_nothing_can_be_left_out_the_first_one_ends_at_once(number: int) -> None:
    async def main() -> None:
        with leading_to(asyncio.Event()):
            await asyncio.sleep(0)
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt), ending_at_once():
        asyncio.run(main())


@BOTH
def test_no_signal_keeps_a_verdict_from_being_told(number: int) -> None:
    with ending_at_once(), unheard():
        os.kill(os.getpid(), number)
