"""Agents that wait, for each kind of wake-up, and what their worker processes say about it.

After each wait comes a step, which witnesses in the side log. `prepare` makes a worker process say when code comes to
stand at a wait and when it is woken, keeps mailboxes small, and has the listener's connection go by way of a proxy
where the test names one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import perdure
from perdure import Again, App, Retry, TimedOut
from perdure.core import limits
from perdure.core.records import Wait, WaitKind, run_id
from perdure.runtime.waiting import Waiting
from tests.support.agents import hold_open, note, pause
from tests.support.deafness import listen_by_way_of_the_proxy
from tests.support.sidelog import say, told

MAILBOX_MAX = 2
"""Messages that a mailbox holds here: a sender soon waits for room."""

PERSISTENT = Retry(attempts=1000, delay_s=0.01)
"""A try that is cut short by the death of its worker counts, and here many are."""

SOMEBODY = "somebody"
"""Whoever is to answer; questions without an assignee are answered by nobody."""


@perdure.step(retry=PERSISTENT)
async def go_on(after: str) -> str:
    """The step after a wait."""
    with told(after=after):
        await pause(0)
    return after


@perdure.step(retry=PERSISTENT)
async def digest(number: int, ms: float) -> int:
    """What a reader does with a message before it takes the next one."""
    with told(number=number, wall_us=wall_us()):
        await pause(ms / 1000)
    return number


# -- one kind of wake-up each ---------------------------------------------------------------------------------


async def naps(count: int, longest_s: float) -> int:
    """Timers, one after the other."""
    for number in range(count):
        await perdure.sleep(perdure.random() * longest_s)
        await go_on(f"nap {number}")
    return count


async def asks(count: int) -> list[str]:
    """Questions, one after the other."""
    heard = []
    for number in range(count):
        heard.append(await perdure.interrupt(number, name="ask", assignee=SOMEBODY))
        await go_on(f"answer {number}")
    return heard


async def reads(count: int, ms: float = 0) -> list[int]:
    """Messages, in their order."""
    heard = []
    for _ in range(count):
        heard.append(await digest(await perdure.receive(int), ms))
    return heard


async def reads_when_told(count: int, ms: float = 0) -> list[int]:
    """The same, once somebody has said that it may begin: until then its mailbox fills."""
    await perdure.interrupt(name="begin")
    return await reads(count, ms)


async def child(number: int) -> int:
    """A child that waits a little itself."""
    await perdure.sleep(perdure.random() * 0.2)
    return await digest(number * number, 1)


async def calls(count: int) -> int:
    """Children, one after the other."""
    found = 0
    for number in range(count):
        found += await perdure.call("child", number)
        await go_on(f"child {number}")
    return found


async def stuffs(thread_id: str, count: int) -> int:
    """Messages to a mailbox that is full most of the time."""
    for number in range(count):
        await perdure.send(thread_id, number)
        await go_on(f"send {number}")
    return count


async def waits_at_once() -> list[Any]:
    """Branches that wait for different things; each goes on for itself."""

    async def then(branch: Any, name: str) -> Any:
        found = await branch
        return [found, await go_on(name)]

    return list(
        await asyncio.gather(
            then(perdure.interrupt(0, name="one", assignee=SOMEBODY), "one"),
            then(perdure.interrupt(1, name="two", assignee=SOMEBODY), "two"),
            then(perdure.sleep(perdure.random()), "timer"),
            then(perdure.call("child", 3), "child"),
            then(perdure.receive(int), "message"),
        )
    )


async def never(text: str = "over") -> str:
    """Waits for what does not come, until it is cancelled or its deadline is over; then it cleans up."""
    try:
        await perdure.interrupt(text, name="never")
    finally:
        await go_on(text)
    return "never"


# -- races ----------------------------------------------------------------------------------------------------


async def brief(ms: float) -> str:
    """Completes after so long."""
    await digest(1, ms)
    return "done"


async def expires(timeout_s: float) -> str:
    """A question with a limit: the answer, or that there was none."""
    try:
        answer: str = await perdure.interrupt("in time?", name="expires", timeout=timeout_s)
    except TimedOut:
        return await note("nobody answered")
    return await note(answer)


async def listens(timeout_s: float) -> int | None:
    """A message with a limit: the message, or that there was none."""
    try:
        return await digest(await perdure.receive(int, timeout=timeout_s), 0)
    except TimedOut:
        await note("no message")
        return None


# -- forks, approvals, children -------------------------------------------------------------------------------


@dataclass
class Names:
    """What has been done so far."""

    done: list[str] = field(default_factory=list)


async def ten(round: int = 1, *, state: Names) -> list[str] | Again:
    """Two super-steps of a step, a child, two parallel steps and another step each."""
    state.done += [await go_on(f"{round}a"), await perdure.call("one_step", f"{round}b")]
    state.done += await asyncio.gather(go_on(f"{round}c"), go_on(f"{round}d"))
    state.done.append(await go_on(f"{round}e"))
    return Again(round + 1) if round == 1 else state.done


async def one_step(text: str) -> str:
    """A child with one step."""
    return await go_on(text)


async def approves(what: str) -> str:
    """Buys once it has been approved."""
    answer = await perdure.interrupt({"buy": what}, name="approve", schema=bool)
    return await note(f"bought {what}" if answer else f"left {what}")


async def approves_beside(what: str, gate: str) -> list[str]:
    """The same, while another branch is in a step's body."""
    return list(await asyncio.gather(approves(what), hold_open(gate)))


async def guards(agent: str, queue: str | None = None, *args: str) -> list[str]:
    """Starts a child and says how that ended, whatever it is."""
    begun = await perdure.start(agent, *args, queue=queue)
    try:
        found = ["completed", str(await begun)]
    except perdure.PerdureError as error:
        found = [type(error).__name__, str(error)]
    await go_on("after the child")
    return found


async def opens(gate: str) -> str:
    """One step, which waits for a gate."""
    return await hold_open(gate)


async def fails() -> str:
    """Fails."""
    raise ValueError("the child broke")


async def sits() -> str:
    """Waits until it is cancelled."""
    await perdure.sleep("1d")
    return "never"


AGENTS = (
    naps, asks, reads, reads_when_told, child, calls, stuffs, waits_at_once, never, brief, expires, listens, ten,
    one_step, approves, approves_beside, guards, opens, fails, sits,
)  # fmt: skip


def app_on(store: str | None = None) -> App:
    """An app with these agents, and one that kills its worker, on a store."""
    from tests.support.agents import lethal

    made = App("waiters", store=store)
    for fn in (*AGENTS, lethal):
        made.agent(fn)
    return made


app = app_on()


# -- worker processes -----------------------------------------------------------------------------------------


def prepare() -> None:
    """In a worker process, before it serves."""
    limits.MAILBOX_MAX = MAILBOX_MAX  # type: ignore[misc]
    listen_by_way_of_the_proxy()
    _tell_of_waits()


def _tell_of_waits() -> None:
    original = Waiting.until

    async def until(self: Waiting, key: str, kind: WaitKind, **options: Any) -> Wait:
        at = self._at
        place = {"run": run_id(at.claimed.run), "super_step": at.number, "key": key, "kind": kind.name}
        say("stands", **place, wall_us=wall_us())
        wait = await original(self, key, kind, **options)
        say("woken", **place, wall_us=wall_us(), due_at=wait.due_at, target=wait.target)
        return wait

    Waiting.until = until  # type: ignore[method-assign]


def wall_us() -> int:
    """The machine's clock, which is the store's here."""
    return time.time_ns() // 1000
