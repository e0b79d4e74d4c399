"""Crash points: kill your agent around every write, and see that it comes to the same end each time.

    # test_crashes.py
    from perdure.testing.crashpoints import crash_points
    from shop import app, quote

    async def scenario(app):                        # at the top of the module: another process must find it
        handle = await app.start(quote, "lamp", thread_id="customer-7", key="order-1")
        assert await handle.result(timeout=20) == "lamp: 400 cents"

    def test_a_quote_survives_a_kill_at_every_write():
        crash_points(app, scenario)

A scenario is what one life of a process does, and is played again after a crash: so give its starts keys, and let
agents send the messages (they do so once; a message that is sent again from outside is another). A worker runs beside
it (`worker=` has its settings; with `worker=None` the scenario brings its own). It is played once undisturbed, to count
its writes: reserving ids, registering a worker, start, claim, commit, giving back, retiring, taking over, an operator's
retry and release, an answer, a message, a cancellation, a fork. Then, for each write and each moment, a process plays
it on a store of its own and dies by SIGKILL: `before` the write, when it is done but its answer is `lost`, or just
`after` the answer was used. A fresh process declares the dead worker dead and plays the scenario to its end; and that
end, every thread, run, question and record, must be the same as the undisturbed one. What may differ is left out: ids,
times, how often something was tried, and the values of `now`, `random` and `uuid4`. Steps whose arguments or results
depend on chance are named in `chance=`.

What your steps do outside of perdure is not looked at: a step's body may run again if its process died before its
record was on disk. If the scenario asserts something about the world, it does so after every crash.

Needs `fork`, and so Linux or macOS. About 50 ms of one core for each point.

`Fault` and `FaultyStore` are the parts: a store that fails once, as told, for tests of your own making.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import UsageError
from perdure.testing.crashpoints.endings import End
from perdure.testing.crashpoints.faults import MOMENTS, WRITES, Fault, FaultyStore, Moment
from perdure.testing.crashpoints.lives import Play, Scenario, check_scenario, where_is
from perdure.testing.crashpoints.points import Plan, Point, Report, Stopped, Trial, enumerate_points

if TYPE_CHECKING:
    from perdure.app import App

__all__ = [
    "MOMENTS", "WRITES", "End", "Fault", "FaultyStore", "Moment", "Point", "Report", "Scenario", "Trial",
    "crash_points",
]  # fmt: skip

NO_SETTINGS: Final[Mapping[str, Any]] = {}


def crash_points(
    app: App,
    scenario: Scenario,
    *,
    store: str | None = None,
    worker: Mapping[str, Any] | None = NO_SETTINGS,
    verbs: Iterable[str] = WRITES,
    moments: Iterable[Moment] = MOMENTS,
    first: Fault | None = None,
    always: Iterable[Fault] = (),
    chance: Iterable[str] = (),
) -> Report:
    """Play the scenario with a process that dies around each of its writes; raise `AssertionError` where it comes to
    another end.

    `store` is one store, of any kind but memory, that all points share: then the scenario takes its name as a second
    argument, uses it as its queue, and begins its thread ids (the name itself, or the name and a `/`) and keys with it.
    Without it, each point has a SQLite file of its own, which is deleted in the end. `verbs` and `moments`: only around
    these writes, and only then. `first`: a fault by which a process has died before, so that the points are those of a
    recovery. `always`: faults that every life survives. `worker` and `chance` are explained above.
    """
    check_scenario(scenario)
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise UsageError("crash points need processes that can fork, and this system has none; use Linux or macOS")
    play = Play(where_is(app), scenario, worker, store is not None, tuple(chance))
    plan = Plan(play, store, frozenset(verbs), tuple(moments), first, tuple(always))
    report = _elsewhere(plan)
    report.check()
    return report


def _elsewhere(plan: Plan) -> Report:
    """Enumerate in a process of its own, from which the others can be forked."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_enumerate, args=(plan, there), name="perdure-crashpoints")
    process.start()
    there.close()
    try:
        answer: Report | str = here.recv()
    except EOFError:
        answer = "the process that was to enumerate the points has died"
    finally:
        process.join()
        here.close()
    if isinstance(answer, str):
        raise AssertionError(answer)
    return answer


def _enumerate(plan: Plan, answers: Connection) -> None:
    plan.play.move_in()
    try:
        answers.send(enumerate_points(plan))
    except Stopped as why:
        answers.send(str(why))
