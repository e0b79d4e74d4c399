"""The scenarios of the crash-point tests: what a process does in its life, and around which of its writes it dies.

Each takes its name, which is its thread (or begins its threads), its queue and the head of its start keys, for many
share a store. Each may be played again at any time by another process, and comes to the same end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from perdure import App, Budget, Conflict, Handle, RunCancelled, RunFailed, RunHeld
from perdure.core.records import RunState
from perdure.store.protocol import Store
from perdure.testing.crashpoints import MOMENTS, WRITES, Fault, FaultyStore, Moment
from tests.support import trading_lives, waiting_lives
from tests.support.lives import app, draining, gates
from tests.support.sidelog import VARIABLE

PATIENCE_S = 30.0

LOOK_S = 0.01
"""Between two looks at what others do."""

assert waiting_lives.app is trading_lives.app is app, "it has its agents by these imports"

QUICKLY = {"lease_s": 30, "poll_s": 0.05}
"""A worker's settings: whoever is dead is declared dead, and nobody waits for a lease."""


async def begin(app: App, agent: str, name: str, *args: Any) -> Handle[Any]:
    """Start the run, or find it."""
    return await app.start(agent, *args, key=name, thread_id=name, queue=name)


async def play_single(app: App, name: str) -> None:
    assert await (await begin(app, "single", name, "word")).result(PATIENCE_S) == "WORD"


async def play_in_a_row(app: App, name: str) -> None:
    assert await (await begin(app, "in_a_row", name, "w")).result(PATIENCE_S) == "WABCD"


async def play_in_a_row_sync(app: App, name: str) -> None:
    assert await (await begin(app, "in_a_row_sync", name, "w")).result(PATIENCE_S) == "WABCD"


async def play_fan_out(app: App, name: str) -> None:
    assert await (await begin(app, "fan_out", name, "w")).result(PATIENCE_S) == ["W0B", "W1B", "W2B"]


async def play_nested(app: App, name: str) -> None:
    assert await (await begin(app, "nested", name, "w")).result(PATIENCE_S) == "W00BW01B+W10BW11B"


async def play_in_threads(app: App, name: str) -> None:
    assert await (await begin(app, "in_threads", name, "w")).result(PATIENCE_S) == ["W0", "W1", "W2"]


async def play_in_processes(app: App, name: str) -> None:
    assert await (await begin(app, "in_processes", name, 6)).result(PATIENCE_S) == [1, 2, 3, 6, 1, 7]


async def play_by_chance(app: App, name: str) -> None:
    assert await (await begin(app, "by_chance", name, "w")).result(PATIENCE_S) == "WB"


async def play_growing(app: App, name: str) -> None:
    assert await (await begin(app, "growing", name, "w")).result(PATIENCE_S) == 4


async def play_bulky(app: App, name: str) -> None:
    text = "much " * 20_000
    assert await (await begin(app, "bulky", name, text)).result(PATIENCE_S) == f"{text}more100002"


async def play_scripted(app: App, name: str) -> None:
    assert await (await begin(app, "scripted", name, "word")).result(PATIENCE_S) == "WORD2 WORD2A 4WORD2B 14"


async def play_stumbling(app: App, name: str) -> None:
    assert await (await begin(app, "stumbling", name, "w")).result(PATIENCE_S) == "WC"


async def play_giving_up(app: App, name: str) -> None:
    assert await released(app, await begin(app, "giving_up", name, "w")) == "W WITHOUT: 2 TRIES"


async def play_brittle(app: App, name: str) -> None:
    assert await released(app, await begin(app, "brittle", name, "w")) == "W"


async def play_failing(app: App, name: str) -> None:
    try:
        await (await begin(app, "failing", name, "w")).result(PATIENCE_S)
    except RunFailed as failed:
        assert failed.error.message == "no use for W"
    else:
        raise AssertionError("it did not fail")


async def play_moody(app: App, name: str) -> None:
    assert await (await begin(app, "moody", name, "w")).result(PATIENCE_S) == "WB"


async def play_relying(app: App, name: str) -> None:
    """An operator mends the cause and sends the failed run on."""
    handle = await begin(app, "relying", name, "w")
    try:
        assert await handle.result(PATIENCE_S) == "WB"
    except RunFailed:
        mend(name)
        await app.retry(handle.run_id)
        assert await handle.result(PATIENCE_S) == "WB"


async def play_drifting(app: App, name: str) -> None:
    """An operator mends the code and releases the held run."""
    assert await released(app, await begin(app, "drifting", name, "w"), mend) == "WB"


async def play_queue_of_three(app: App, name: str) -> None:
    """Three runs of one thread, each promoted by the end of the one before."""
    handles = [
        await app.start("adding", number, key=f"{name}/{number}", thread_id=name, queue=name) for number in (1, 2, 3)
    ]
    gates[name].set()
    assert [await handle.result(PATIENCE_S) for handle in handles] == [1, 3, 6]


async def play_two_starters(app: App, name: str) -> None:
    """Two starters with one key, and one who joins: one run."""
    first, second = await asyncio.gather(*(begin(app, "adding", name, 3) for _ in range(2)))
    joined = await app.start("adding", 3, key=f"{name}/joins", thread_id=name, queue=name, if_busy="join")
    gates[name].set()
    assert first.run_id == second.run_id == joined.run_id
    assert await joined.result(PATIENCE_S) == 3


async def play_drain(app: App, name: str) -> None:
    """A worker is stopped in the middle and hands back; the next one goes on."""
    handle = await begin(app, "stopping", name, "w")
    async with app.worker(queues=[name], **QUICKLY) as first:
        draining[name] = first
        ends = [asyncio.create_task(end) for end in (first.stopped(), handle.result(PATIENCE_S))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    async with app.worker(queues=[name], **QUICKLY):
        assert await handle.result(PATIENCE_S) == "WB"
    await asyncio.gather(*ends)


# -- waiting ----------------------------------------------------------------------------------------------------


async def play_pausing(app: App, name: str) -> None:
    assert await (await begin(app, "pausing", name, "w")).result(PATIENCE_S) == 2


async def play_racing(app: App, name: str) -> None:
    assert await (await begin(app, "racing", name, "w")).result(PATIENCE_S) == "W11"


async def play_asking(app: App, name: str) -> None:
    """A person answers whatever is asked."""
    handle = await begin(app, "asking", name, "w")
    await answered(app, handle, {"first": "x", "second": 7})
    assert await handle.result(PATIENCE_S) == "WX7"


async def play_unanswered(app: App, name: str) -> None:
    await cancelled(await begin(app, "unanswered", name, "w"), "nobody answered 'at least' in time")


async def play_correspondence(app: App, name: str) -> None:
    handle = await begin(app, "correspondence", name)
    assert await handle.result(PATIENCE_S) == ["reader", "M0", "M1", "M1"]


async def play_leading(app: App, name: str) -> None:
    handle = await begin(app, "leading", name, "w")
    assert await handle.result(PATIENCE_S) == ["W", "RUNFAILED", "cancelled"]


async def play_undoing(app: App, name: str) -> None:
    """Somebody cancels a run that waits for its child, which waits, too."""
    handle = await begin(app, "undoing", name, "w")
    await parked(app, name, f"{name}/below")
    await handle.cancel("no use")
    await cancelled(handle, "no use")
    (below,) = await app.runs(thread_id=f"{name}/below")
    await cancelled(app.handle(below.run_id), "no use")


async def play_belated(app: App, name: str) -> None:
    handle: Handle[Any] = await app.start("belated", "w", key=name, thread_id=name, queue=name, deadline=0.3)
    try:
        await handle.result(PATIENCE_S)
    except RunFailed as failed:
        assert "before its deadline" in failed.error.message
    else:
        raise AssertionError("it did not fail")


async def play_fork(app: App, name: str) -> None:
    """A run that has asked and ended, and a fork of it that is answered otherwise."""
    await play_asking(app, name)
    try:
        fork = await app.thread(name).fork(1, "note", thread_id=f"{name}/fork")
    except Conflict:
        (run,) = await app.runs(thread_id=f"{name}/fork")
        fork = app.handle(run.run_id)
    await answered(app, fork, {"second": 8})
    assert await fork.result(PATIENCE_S) == "WX8"


async def play_trading(app: App, name: str) -> None:
    """What was handed over arrives, also after a crash."""
    handle = await begin(app, "trading", name, "w")
    assert await handle.result(PATIENCE_S) == 3
    await arrived(app, handle, 3)


async def play_saving(app: App, name: str) -> None:
    """A person raises what is not enough."""
    handle = await begin(app, "saving", name, "w")
    async with asyncio.timeout(PATIENCE_S):
        while (await handle.status()).state != RunState.COMPLETED:
            for asked in await app.interrupts(run_id=handle.run_id):
                await app.set_budget(asked.payload["budget"], Budget(tokens=100), by="ann")
            await asyncio.sleep(LOOK_S)
    assert await handle.result(PATIENCE_S) == "W012"


async def play_moving(app: App, name: str) -> None:
    assert await (await begin(app, "moving", name)).result(PATIENCE_S) == [1, 2, 3]


async def arrived(app: App, handle: Handle[Any], count: int) -> None:
    """Wait until so many deliveries of a run are delivered."""
    async with asyncio.timeout(PATIENCE_S):
        while len(await app.deliveries(run_id=handle.run_id, state="delivered")) < count:
            await asyncio.sleep(LOOK_S)


async def answered(app: App, handle: Handle[Any], answers: dict[str, Any]) -> None:
    """Answer what the run asks, until all has been."""
    left = dict(answers)
    async with asyncio.timeout(PATIENCE_S):
        while left:
            for asked in await app.interrupts(state=None, run_id=handle.run_id):
                if asked.name in left:
                    await app.resume(asked.id, left.pop(asked.name), by="ann")
            await asyncio.sleep(LOOK_S)


async def parked(app: App, *threads: str) -> None:
    """Wait until the runs of these threads are parked, or are over or being cancelled already."""
    async with asyncio.timeout(PATIENCE_S):
        for thread in threads:
            while not any(_rests(run) for run in await app.runs(thread_id=thread)):
                await asyncio.sleep(LOOK_S)


def _rests(run: Any) -> bool:
    return run.cancel is not None or run.state in (RunState.WAITING, RunState.CANCELLED)


async def cancelled(handle: Handle[Any], why: str) -> None:
    """See the run end as cancelled, for this reason."""
    try:
        await handle.result(PATIENCE_S)
    except RunCancelled as ended:
        assert why in ended.reason
    else:
        raise AssertionError("it was not cancelled")


def mend(name: str) -> None:
    """What an operator does before he sends a run on."""
    (Path(os.environ[VARIABLE]).parent / f"{name}-mended").touch()


async def released(app: App, handle: Handle[Any], mend: Callable[[str], None] = lambda name: None) -> Any:
    """The result of a run that an operator releases whenever it is held."""
    while True:
        try:
            return await handle.result(PATIENCE_S)
        except RunHeld:
            mend(handle.thread_id)
            await app.release(handle.run_id)


# -- lives outside of an enumeration --------------------------------------------------------------------------


async def live(store_url: str, case: str, name: str, *faults: Fault) -> FaultyStore:
    """Play a scenario in this process, on an app of its own; the store that it had."""
    made = App("lives", store=store_url)
    made.agents.update(app.agents)
    store = FaultyStore(made._store, *faults)
    made._store = cast(Store, store)
    async with made, made.worker(queues=[name], **QUICKLY):
        await CASES[case].play(made, name)
    return store


def live_in_a_child(log: str, store_url: str, case: str, name: str, *faults: Fault) -> None:
    """The same, as the main function of a process."""
    os.environ[VARIABLE] = log
    asyncio.run(live(store_url, case, name, *faults))


# -- how their points are tried -------------------------------------------------------------------------------

ABOUT_ITSELF = frozenset({"reserve_ids", "register", "retire"})
"""What a process writes before and after its runs."""


@dataclass(frozen=True)
class Case:
    """A scenario, and around which of its writes a process dies."""

    play: Callable[[App, str], Awaitable[None]]
    whole: bool = False
    """Also around what the process writes about itself. That is the same in every life, so a few cases have it; all of
    them with `$PERDURE_TEST_EVERY_POINT`."""
    slow: bool = False
    """Only with `$PERDURE_TEST_EVERY_POINT`."""
    around: frozenset[str] = WRITES
    """Only around these writes: the others are those of another scenario, and are tried there."""
    brief: bool = False
    """Not just after a write, nor around a claim: where many runs are claimed again and again, that would be half of
    all points."""
    options: dict[str, Any] = field(default_factory=dict)

    def moments(self, store_url: str) -> tuple[Moment, ...]:
        """With the answer lost and just after it, the rows are the same, and what differs knows no store. So where a
        process is dear, for its connections, the one is tried without the other; both with that variable."""
        whole = every_point() or (store_url.startswith("sqlite") and not self.brief)
        return MOMENTS if whole else ("before", "lost")

    @property
    def verbs(self) -> frozenset[str]:
        left_out = (frozenset() if self.whole else ABOUT_ITSELF) | (frozenset({"claim"}) if self.brief else frozenset())
        return WRITES if every_point() else self.around - left_out


def every_point() -> bool:
    return "PERDURE_TEST_EVERY_POINT" in os.environ


def at(verb: str, nth: int, moment: Moment, *, dies: bool = True) -> Fault:
    """The fault at the n-th write of one verb."""
    return Fault(nth, moment, dies=dies, verbs=frozenset({verb}))


CASES = {
    "one step": Case(play_single, whole=True),
    "steps in a row": Case(play_in_a_row),
    "steps in a row, each awaited": Case(play_in_a_row_sync),
    "a fan-out": Case(play_fan_out),
    "nested task groups": Case(play_nested),
    "steps in threads": Case(play_in_threads),
    "steps in processes": Case(play_in_processes, slow=True),
    "recorded chance": Case(play_by_chance),
    "a growing state": Case(play_growing),
    "large values": Case(play_bulky),
    "every kind of record": Case(play_scripted),
    "a step tried again": Case(play_stumbling),
    "a step whose last try fails": Case(play_giving_up),
    "a run that fails": Case(play_failing),
    "a run tried again": Case(play_moody),
    "a failed run sent on": Case(play_relying),
    "a diverged run released": Case(play_drifting),
    "an exhausted step released": Case(play_brittle, options={"first": at("commit", 2, "after")}),
    "three runs of a thread": Case(play_queue_of_three),
    "two starters of one run": Case(play_two_starters),
    "a drain in the middle": Case(play_drain, whole=True, options={"worker": None}),
    "a recovery": Case(play_in_a_row_sync, options={"first": at("commit", 2, "lost")}),
    "sleeps and limits": Case(play_pausing),
    "a race of waits": Case(play_racing, brief=True),
    "questions and answers": Case(play_asking, brief=True),
    "questions that nobody answers": Case(play_unanswered, brief=True),
    "messages": Case(play_correspondence, brief=True),
    "children": Case(play_leading, brief=True),
    "a cancellation, and what was done is undone": Case(play_undoing, brief=True),
    "a deadline": Case(play_belated, brief=True),
    "a fork": Case(play_fork, around=frozenset({"fork", "answer"})),
    "deliveries and meters": Case(play_trading, brief=True),
    "a budget that is raised": Case(play_saving, brief=True),
    "transactions": Case(play_moving),
    "a claim whose answer was lost": Case(play_single, options={"always": [at("claim", 1, "lost", dies=False)]}),
}
