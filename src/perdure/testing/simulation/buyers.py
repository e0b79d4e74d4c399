"""Agents with effects: they act on the world's provider, with every policy, and undo what they have done."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure import Again, DidNotHappen, Happened, OutcomeUnknown, Retry, StillUnknown
from perdure.runtime.effect import Effect
from perdure.runtime.frames import StepFrame, frame
from perdure.testing.simulation.played import world_here
from perdure.testing.simulation.provider import Provider, Receipt
from perdure.testing.simulation.roles import Log, Role, agent_of, failed, numbered
from perdure.testing.simulation.steps import work

TRIES: Final = Retry(attempts=3, delay_s=0.2, max_delay_s=1.0)
ENDS: Final = ("well", "badly", "asks", "well", "badly", "sleeps")


def _provider() -> Provider:
    return world_here().provider


async def refund(receipt: Receipt, label: str) -> None:
    """Undo a payment."""
    assert receipt.label == label
    await _take_back(receipt)


async def unship(receipt: Receipt) -> None:
    """Undo a delivery."""
    await _take_back(receipt)


async def unbook(receipt: Receipt, **named: str) -> None:
    """Undo a booking."""
    assert receipt.label == named.get("label", receipt.label)
    await _take_back(receipt)


async def _take_back(receipt: Receipt) -> None:
    here = frame.get()
    assert isinstance(here, StepFrame)
    world_here().witness.undo(here)
    await _provider().do(perdure.effect_key(), f"undo of {receipt.number}")


async def look_it_up(key: str, arguments: dict[str, Any]) -> Happened | DidNotHappen | StillUnknown:
    """Ask the provider."""
    assert arguments["label"]
    return await _provider().tell(key)


@perdure.effect(on_unknown="retry", undo=refund, retry=TRIES)
async def pay(label: str) -> Receipt:
    """The provider may know keys."""
    return await _provider().do(perdure.effect_key(), label)


@perdure.effect(verify=look_it_up, on_unknown="fail", undo=unship, retry=TRIES)
async def ship(label: str) -> Receipt:
    """The provider can be asked."""
    return await _provider().do(perdure.effect_key(), label)


@perdure.effect(on_unknown="ask", undo=unbook, retry=TRIES, timeout=3.0)
async def book(label: str) -> Receipt:
    """A person can find out."""
    return await _provider().do(perdure.effect_key(), label)


@perdure.effect(on_unknown="fail", retry=TRIES)
async def notify(label: str) -> Receipt:
    """Nobody can find out, and nobody can take it back."""
    return await _provider().do(perdure.effect_key(), label)


EFFECTS: Final[tuple[Effect[..., Any], ...]] = (pay, ship, book, notify)

PEOPLE_SAY: Final = 50
"""Tries of an effect that people are asked about, in the counting of the witness: they may be told again and again that
it did not happen."""


async def shopper(label: str, end: str) -> list[Receipt]:
    """One effect after the other."""
    found = [await pay(label), await ship(label), await book(label=label)]
    await work(label)
    return await _come_to(end, label, found)


async def bazaar(label: str, width: int, end: str) -> list[Receipt]:
    """Effects in branches, several in each."""

    async def branch(n: int) -> list[Receipt]:
        first, second = (pay, ship) if n % 2 else (book, pay)
        return [await first(f"{label} {n}"), await second(f"{label} {n} too")]

    found = [each for pair in await asyncio.gather(*(branch(n) for n in range(width))) for each in pair]
    return await _come_to(end, label, found)


async def tour(label: str, rounds: int, end: str, round: int = 0) -> list[Receipt] | Again:
    """Effects in several super-steps; what is undone is undone over all of them."""
    found = [await (ship if round % 2 else pay)(f"{label} {round}"), await pay(f"{label} {round} fee")]
    if round + 1 < rounds:
        return Again(label, rounds, end, round + 1)
    return await _come_to(end, label, found)


async def regretful(label: str) -> list[Receipt]:
    """Undoes what it has done so far, and does it otherwise."""
    found = [await pay(label), await ship(label)]
    await perdure.compensate()
    await work(f"{label} undone")
    return [*found, await pay(f"{label} at last")]


async def crier(label: str) -> str:
    """Takes it that nobody knows."""
    try:
        return (await notify(label)).label
    except OutcomeUnknown:
        return "nobody knows"


async def careless(label: str, end: str) -> list[Receipt]:
    """Does not, and is sent on by an operator who has found out."""
    return await _come_to(end, label, [await notify(label), await notify(f"{label} too")])


async def wavering(label: str) -> list[Receipt]:
    """Fails as a whole, and is tried again as a whole: what it has done stays done."""
    found = [await pay(label), await notify(label)]
    if perdure.current().attempt < 3:
        raise ConnectionError("not this time")
    return found


async def _come_to(end: str, label: str, found: list[Receipt]) -> list[Receipt]:
    match end:
        case "badly":
            raise ValueError(f"{label} did not come to a good end")
        case "asks":
            await perdure.interrupt({"asks": label})
        case "sleeps":
            await perdure.sleep(1.5)
        case _:
            """Well."""
    return found


def _of_shopper(args: tuple[Any, ...], log: Log) -> Any:
    return [log["pay"], log["ship"], log["book"]]


def _of_bazaar(args: tuple[Any, ...], log: Log) -> Any:
    keys = [("pay", "ship") if n % 2 else ("book", "pay") for n in range(args[1])]
    return [log[f"{n + 1}/{key}"] for n, pair in enumerate(keys) for key in pair]


def _of_tour(args: tuple[Any, ...], log: Log) -> Any:
    return [log["ship"], log["pay"]] if args[1] % 2 == 0 else [log["pay"], log["pay#2"]]


def _of_crier(args: tuple[Any, ...], log: Log) -> Any:
    return "nobody knows" if failed(log, "notify") == "OutcomeUnknown" else args[0]


def _of_careless(args: tuple[Any, ...], log: Log) -> Any:
    return [log[key] for key in numbered("notify", 2)]


BUYERS: Final = (
    Role(agent_of(shopper), lambda n: (f"{n}", ENDS[n % 6]), _of_shopper),
    Role(agent_of(bazaar), lambda n: (f"{n}", 2 + n % 3, ENDS[n % 6]), _of_bazaar),
    Role(agent_of(tour), lambda n: (f"{n}", 1 + n % 4, ENDS[n % 6]), _of_tour),
    Role(agent_of(regretful), lambda n: (f"{n}",), lambda args, log: [log[k] for k in ("pay", "ship", "pay#2")]),
    Role(agent_of(crier), lambda n: (f"{n}",), _of_crier),
    Role(agent_of(careless), lambda n: (f"{n}", ENDS[n % 2 * 2]), _of_careless),
    Role(
        agent_of(wavering, retry=Retry(attempts=4, delay_s=0.2)), lambda n: (f"{n}",),
        lambda args, log: [log["pay"], log["notify"]],
    ),
)  # fmt: skip
