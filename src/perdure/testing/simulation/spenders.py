"""Agents that use things up, and say so: in bodies that succeed and in ones that fail, in effects and in their own
code; under budgets, with estimates that hold and ones that do not."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure import Cost, Retry
from perdure.core.budgets import Budget, limits_of
from perdure.errors import BudgetExceeded
from perdure.runtime.effect import Effect
from perdure.runtime.frames import StepFrame, frame
from perdure.testing.simulation.played import world_here
from perdure.testing.simulation.provider import Receipt
from perdure.testing.simulation.roles import Log, Role, agent_of, failed, numbered
from perdure.testing.simulation.steps import TRIES, Token, undo

STOPPED: Final = "BudgetExceeded"


def use(number: int) -> None:
    """Use something up, in a body; the world is told as well. What is used hangs on nothing but the number."""
    here = frame.get()
    assert isinstance(here, StepFrame)
    for name, quantity in (("usd", (number % 5 + 1) / 10), ("tokens", number % 4 * 100)):
        perdure.meter(name, quantity, n=number)
        world_here().witness.metered(here, name, quantity)


def _token(label: str) -> Token:
    number = world_here().next_token()
    use(number)
    return Token(number, label, perdure.current().deployment)


@perdure.step(retry=TRIES, estimate=Cost(usd=0.3, tokens=200))
async def think(label: str) -> Token:
    """Its estimate is about right."""
    return _token(label)


@perdure.step(retry=TRIES)
async def guess(label: str) -> Token:
    """Nobody knows what it costs."""
    return _token(label)


@perdure.step(retry=Retry(attempts=4, delay_s=0.1, max_delay_s=0.4), estimate=Cost(usd=0.5, seconds=0.1))
async def risky(label: str) -> Token:
    """Uses something up, and fails, twice in each run."""
    if world_here().times(f"risky in {perdure.current().run_id}") <= 2:
        use(world_here().next_token())
        raise ConnectionError("not yet")
    return _token(label)


@perdure.step(retry=Retry(attempts=2, delay_s=0.1), timeout=0.5, estimate=Cost(usd=0.4))
async def hasty(label: str) -> Token:
    """Uses something up, and then takes too long at times."""
    token = _token(label)
    if token.number % 3 == 0:
        await asyncio.sleep(1.0)
    return token


@perdure.step(retry=TRIES, estimate=Cost(usd=0.1))
def tally_up(label: str) -> Token:
    """A plain function."""
    return _token(label)


@perdure.effect(on_unknown="retry", retry=TRIES, estimate=Cost(usd=0.4))
async def buy(label: str) -> Receipt:
    """An effect that costs."""
    use(world_here().next_token())
    return await world_here().provider.do(perdure.effect_key(), label)


SPENDING: Final = (think, guess, risky, hasty, tally_up)
BUYING: Final[tuple[Effect[..., Any], ...]] = (buy,)


async def spender(label: str, count: int) -> list[Token]:
    """One step after the other, and some uses of its own."""
    found = []
    for n in range(count):
        found.append(await (guess if n % 3 == 2 else think)(f"{label} {n}"))
        perdure.meter("usd", 0.05)
    return found


async def crowd(label: str, width: int) -> list[Token]:
    """Branches that reserve at once."""
    return list(await asyncio.gather(*(think(f"{label} {n}") for n in range(width))))


async def patron(label: str, count: int) -> list[Any]:
    """Children at once, under its own budget."""
    kids = [await perdure.start("protege", f"{label}.{n}", 1 + n % 2) for n in range(count)]
    ends = await asyncio.gather(*kids, return_exceptions=True)
    return ["none" if isinstance(end, BaseException) else end for end in ends]


async def protege(label: str, count: int) -> int:
    """A child: what it uses its parent has used."""
    found = [await (think if n % 2 else risky)(f"{label} {n}") for n in range(count)]
    return len(found)


async def thrifty(label: str, count: int, round: int = 0) -> list[Token] | perdure.Again:
    """Every run of it has a budget; super-steps count against one."""
    found = [await think(f"{label} {round}"), await tally_up(f"{label} {round} up")]
    return perdure.Again(label, count, round + 1) if round + 1 < count else found


async def frugal(label: str, count: int) -> list[str]:
    """Goes on with less where it is told to stop, and waits a little after that."""
    became = []
    for n in range(count):
        try:
            became.append((await think(f"{label} {n}")).label)
        except BudgetExceeded:
            became.append(STOPPED)
            await perdure.sleep(0.5)
    await perdure.sleep(1.0)
    return became


async def racing(label: str, limit_s: float) -> list[str]:
    """Steps in a limited time: what is reserved for one that was cut short is not for ever."""
    seen = []
    try:
        async with perdure.timeout(limit_s):
            for n in range(3):
                seen.append((await hasty.options(name="hasty")(f"{label} {n}")).label)
    except (perdure.TimedOut, perdure.StepFailed):
        seen.append((await tally_up(f"{label} late after {len(seen)}")).label)
    return seen


async def flighty(label: str, width: int) -> int:
    """Goes with what comes first, and leaves the others in flight."""
    branches = [asyncio.create_task(hasty(f"{label} {n}")) for n in range(width)]
    done, _ = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    return sum(each.exception() is None for each in done)


async def shopkeeper(label: str, count: int) -> list[int]:
    """Effects that cost, and steps between them."""
    found = []
    for n in range(count):
        found += [(await buy(f"{label} {n}")).number, (await risky(f"{label} {n}")).number]
    return found


async def dutiful(label: str) -> list[str]:
    """Cleans up when it is cancelled, with what that costs, whatever is left."""
    seen: list[str] = []
    try:
        for n in range(3):
            seen.append((await think(f"{label} {n}")).label)
            await perdure.sleep(0.4)
    except asyncio.CancelledError:
        await tally_up(f"{label} undone after {len(seen)}")
        await undo(label, seen)
        raise
    return seen


def _of_spender(args: tuple[Any, ...], log: Log) -> Any:
    thinks = iter(numbered("think", args[1]))
    guesses = iter(numbered("guess", args[1]))
    assert args[1] == sum(key.startswith("meter") for key in log), "it has metered once for each"
    return [log[next(guesses if n % 3 == 2 else thinks)] for n in range(args[1])]


def _of_shopkeeper(args: tuple[Any, ...], log: Log) -> Any:
    pairs = zip(numbered("buy", args[1]), numbered("risky", args[1]), strict=True)
    return [log[key]["number"] for pair in pairs for key in pair]


def _of_frugal(args: tuple[Any, ...], log: Log) -> Any:
    return [failed(log, key) or log[key]["label"] for key in numbered("think", args[1])]


_NEXT_TO_NOTHING: Final = limits_of(Budget(usd=0.35))
_THRIFT: Final = limits_of(Budget(usd=0.7, steps=5))

SPENDERS: Final = (
    Role(agent_of(spender), lambda n: (f"{n}", 1 + n % 5), _of_spender),
    Role(
        agent_of(crowd), lambda n: (f"{n}", 2 + n % 4),
        lambda args, log: [log[f"{n + 1}/think"] for n in range(args[1])],
    ),
    Role(agent_of(patron), lambda n: (f"{n}", 2 + n % 3), lambda args, log: None),
    Role(agent_of(protege), lambda n: (f"{n}", 1 + n % 3), lambda args, log: args[1]),
    Role(
        agent_of(thrifty, budget=_THRIFT), lambda n: (f"{n}", 1 + n % 3),
        lambda args, log: [log["think"], log["tally_up"]],
    ),
    Role(agent_of(frugal, budget=_NEXT_TO_NOTHING), lambda n: (f"{n}", 1 + n % 4), _of_frugal),
    Role(agent_of(racing), lambda n: (f"{n}", (0.05, 0.4, 2.0)[n % 3]), lambda args, log: None, withdraws=True),
    Role(agent_of(flighty), lambda n: (f"{n}", 2 + n % 3), lambda args, log: None, withdraws=True),
    Role(agent_of(shopkeeper), lambda n: (f"{n}", 1 + n % 2), _of_shopkeeper),
    Role(agent_of(dutiful), lambda n: (f"{n}",), lambda args, log: None, cleans_up=True),
)  # fmt: skip
