"""Agents that start others, and agents that have something to undo."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure.core.records import ErrorInfo
from perdure.testing.simulation.roles import Log, Role, agent_of
from perdure.testing.simulation.steps import broken, careful, reserve, undo, work

DOES: Final = ("works", "works", "fails", "sleeps", "asks", "works")
UNFINISHED: Final = ("RunFailed", "RunCancelled", "RunHeld")


async def kid(label: str, does: str) -> str:
    """A child: it may fail (until an operator has mended it), sleep or ask first."""
    match does:
        case "fails":
            await broken(label)
        case "sleeps":
            await perdure.sleep(0.7)
        case "asks":
            await perdure.interrupt({"child asks": label})
        case _:
            await work(label)
    return f"{label} {does}"


async def parent(label: str, count: int) -> list[str]:
    """Has so many children at once, and says how each has ended."""
    return list(await asyncio.gather(*(_end_of(f"{label}.{n}", DOES[(count + n) % len(DOES)]) for n in range(count))))


async def _end_of(label: str, does: str) -> str:
    try:
        return str(await perdure.call("kid", label, does))
    except (perdure.RunFailed, perdure.RunCancelled, perdure.RunHeld) as end:
        await work(f"{label}: {type(end).__name__}")
        return type(end).__name__


async def grandparent(label: str) -> list[Any]:
    """Has children that have children, and one that is nobody's business."""
    alone = await perdure.start("kid", f"{label} alone", "sleeps", detached=True)
    found = await asyncio.gather(
        perdure.call("parent", f"{label} left", 2), perdure.call("parent", f"{label} right", 1), return_exceptions=True
    )
    return [alone.run_id, *("none" if isinstance(each, BaseException) else each for each in found)]


async def stern(label: str) -> str:
    """Starts a child, cancels it, and sees what came of that."""
    child = await perdure.start("kid", label, "asks", thread_id=f"child of {label}", if_busy="enqueue")
    await work(label)
    await child.cancel("it took too long")
    try:
        return str(await child)
    except perdure.RunCancelled:
        return "RunCancelled"


async def held(label: str) -> str:
    """Has a child that kills its workers, and awaits it again when it was held for that."""
    child = await perdure.start("poisonous", label)
    for _ in range(3):
        try:
            return str(await child)
        except perdure.RunHeld:
            await work(f"{label}: held")
        except (perdure.RunCancelled, perdure.RunFailed) as end:
            return type(end).__name__
    return "given up"


async def booking(label: str, nights: int) -> list[Any]:
    """Reserves, asks, and undoes what it has done if it is cancelled. Undoing takes steps, time and a wait."""
    seen: list[Any] = []
    try:
        for n in range(nights):
            seen.append((await reserve(f"{label} {n}")).label)
            seen.append((await careful(f"{label} {n}")).label)
            seen.append(await _posted(label, n))
            await perdure.sleep(0.4)
        seen.append(await perdure.interrupt({"approve": label}))
        seen.append(await _end_of(label, "sleeps"))
    except asyncio.CancelledError:
        await undo(f"{label} first", seen)
        await perdure.sleep(0.3)
        await undo.options(name="work")(f"{label} then", seen)
        raise
    return seen


async def _posted(label: str, n: int) -> str:
    try:
        await perdure.send(f"reader on thread {n % 2}", {"by": label, "n": n}, on_full="block")
    except perdure.NotFound:
        return "NotFound"
    return "sent"


async def mixed(label: str) -> list[Any]:
    """Waits of all kinds at once."""

    async def nap() -> str:
        await perdure.sleep(0.5)
        return "slept"

    async def read() -> str:
        try:
            await perdure.receive(timeout=1.5)
        except perdure.TimedOut:
            return "none"
        return "read"

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(nap()),
            group.create_task(perdure.interrupt({"mixed": label})),
            group.create_task(_shielded(label)),
            group.create_task(read()),
            group.create_task(work(label)),
        ]
    first, *others = [task.result() for task in tasks[:-1]]
    return [first, *others, tasks[-1].result().label]


async def _shielded(label: str) -> str:
    return await asyncio.shield(_end_of(label, "sleeps"))


def _of_parent(args: tuple[Any, ...], log: Log) -> Any:
    return [_shown(log[f"{n}/result:kid"]) for n in range(1, args[1] + 1)]


def _shown(value: Any) -> Any:
    return value.type.rpartition(".")[2] if isinstance(value, ErrorInfo) else value


def _of_grandparent(args: tuple[Any, ...], log: Log) -> Any:
    found = [log[f"{n}/result:parent"] for n in (1, 2)]
    return [f"r{log['start:kid'][0]}", *("none" if isinstance(each, ErrorInfo) else each for each in found)]


def _of_stern(args: tuple[Any, ...], log: Log) -> Any:
    assert "cancel:kid" in log
    return _shown(log["result:kid"])


def _of_held(args: tuple[Any, ...], log: Log) -> Any:
    ends = [_shown(log[key]) for key in ("result:poisonous", "result:poisonous#2", "result:poisonous#3") if key in log]
    return "given up" if ends[-1] == "RunHeld" and len(ends) == 3 else ends[-1]


def _of_mixed(args: tuple[Any, ...], log: Log) -> Any:
    assert "1/sleep" in log
    read = "none" if isinstance(log["4/receive"], ErrorInfo) else "read"
    child = next(value for key, value in log.items() if key.endswith("/result:kid"))
    return ["slept", log["2/interrupt"], _shown(child), read, log["5/work"]["label"]]


FAMILIES: Final = (
    Role(agent_of(kid), lambda n: (f"{n}", DOES[n % len(DOES)]), lambda args, log: f"{args[0]} {args[1]}"),
    Role(agent_of(parent), lambda n: (f"{n}", 1 + n % 5), _of_parent),
    Role(agent_of(grandparent), lambda n: (f"{n}",), _of_grandparent),
    Role(agent_of(stern), lambda n: (f"{n}",), _of_stern),
    Role(agent_of(held), lambda n: (f"{n}",), _of_held),
    Role(agent_of(booking), lambda n: (f"{n}", 1 + n % 3), lambda args, log: None, cleans_up=True, undone_by="undo"),
    Role(agent_of(mixed), lambda n: (f"{n}",), _of_mixed, reads=True, withdraws=True),
)
