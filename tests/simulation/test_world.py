"""Processes and the wire between them and the database."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.core.changes import Change, ParkRun, RequeueRun
from perdure.core.requests import NewMessage, NewWorker
from perdure.errors import StoreUnavailable
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Hint, Store
from perdure.testing.simulation.weather import Weather
from perdure.testing.simulation.wire import Database, Fate, Request
from perdure.testing.simulation.world import Process, Stuck, World
from tests.simulation.virtual import pause

PARKING, LETTING_GO = ParkRun(2, 1, 3), RequeueRun(2, 1, 3, 0)
NEWCOMER = NewWorker(1, "worker", "host", 1, "v1", 3_000_000)


class Scene:
    """A world with a database."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.world = World(7)
        self.root = MemoryStore(now_us=lambda: self.database.now_us())
        self.database = Database(self.world, self.root)
        opening = self.database.loop.create_task(self.root.open())
        self.world.run(opening.done, deadline_s=1.0)
        self.weather = weather

    def process(self, main: Callable[[Store], Awaitable[Any]], *, name: str = "process") -> tuple[Process, list[Any]]:
        """A process that opens its store, and what became of its main."""
        process, ended = self.world.process(name), []
        store = self.database.connect(process)

        async def body() -> None:
            await store.open()
            self.database.weather = self.weather or self.database.weather
            try:
                ended.append(await main(store))
            except StoreUnavailable as error:
                ended.append(error)

        process.start(body())
        return process, ended

    def workers(self) -> list[int]:
        """The workers that the database knows."""
        looking = self.database.loop.create_task(self.root.workers(alive=False))
        self.world.run(looking.done, deadline_s=0.0)
        return [worker.id for worker in looking.result()]

    def pass_time(self, seconds: float) -> None:
        self.world.run(lambda: False, deadline_s=seconds)


async def register(store: Store) -> str:
    await store.register(NEWCOMER)
    return "registered"


def test_a_request_is_done_and_answered() -> None:
    scene = Scene()
    _, ended = scene.process(register)
    scene.pass_time(1.0)
    assert (ended, scene.workers()) == (["registered"], [1])


@pytest.mark.parametrize(
    ("weather", "known", "done"),
    [
        (Weather(refused=1.0), "refuses", False),
        (Weather(request_lost=1.0), "nobody knows", False),
        (Weather(reply_lost=1.0), "nobody knows", True),
        (Weather(request_late=1.0), "nobody knows", True),
    ],
    ids=["refused", "request lost", "reply lost", "request late"],
)
def test_what_the_caller_learns_and_what_was_done_are_two_things(weather: Weather, known: str, done: bool) -> None:
    scene = Scene(weather)
    _, ended = scene.process(register)
    scene.pass_time(30.0)
    assert isinstance(ended[0], StoreUnavailable) and known in str(ended[0])
    assert scene.workers() == ([1] if done else [])


@pytest.mark.parametrize(
    ("weather", "done"),
    [
        (Weather(dies_before=1.0), False),
        (Weather(dies_with_request_on_its_way=1.0), True),
        (Weather(dies_before_reply=1.0), True),
        (Weather(dies_after_reply=1.0), True),
    ],
    ids=["before", "under way", "before the reply", "after the reply"],
)
def test_a_process_dies_around_its_write(weather: Weather, done: bool) -> None:
    scene = Scene(weather)
    process, _ = scene.process(register)
    scene.pass_time(30.0)
    assert not process.alive
    assert scene.workers() == ([1] if done else [])


def test_a_late_request_is_done_after_its_sender_has_given_up() -> None:
    scene = Scene(Weather(request_late=1.0))
    _, ended = scene.process(register)
    scene.world.run(lambda: bool(ended), deadline_s=30.0)
    assert scene.workers() == []
    scene.pass_time(10.0)
    assert scene.workers() == [1]


def test_an_outage_refuses_everybody_until_it_is_over() -> None:
    scene = Scene()

    async def insist(store: Store) -> float:
        scene.database.down = True
        while True:
            try:
                await store.register(NEWCOMER)
            except StoreUnavailable:
                await pause(0.5)
            else:
                return scene.world.now

    _, ended = scene.process(insist)
    scene.pass_time(5.0)
    assert ended == []
    scene.database.down = False
    scene.pass_time(1.0)
    assert ended[0] > 5.0


def test_a_process_that_is_killed_runs_nothing_more_not_even_its_cleaning_up() -> None:
    scene = Scene()
    seen: list[str] = []

    async def main(store: Store) -> None:
        try:
            await pause(10.0)
        finally:
            seen.append("cleaned up")

    process, _ = scene.process(main)
    scene.pass_time(1.0)
    process.kill()
    scene.pass_time(20.0)
    assert (seen, process.alive) == ([], False)


def test_a_process_that_is_stopped_loses_time_and_goes_on() -> None:
    scene = Scene()

    async def main(store: Store) -> float:
        await pause(1.0)
        return scene.world.now

    process, ended = scene.process(main)
    scene.pass_time(0.5)
    process.pause()
    scene.pass_time(10.0)
    assert ended == []
    process.resume()
    scene.pass_time(0.1)
    assert ended[0] >= 10.5


def test_a_blocked_loop_does_not_stop_the_one_beside_it() -> None:
    scene = Scene()
    ticks: list[float] = []

    async def beside() -> None:
        while True:
            await pause(1.0)
            ticks.append(scene.world.now)

    async def main(store: Store) -> None:
        process.surroundings().beside("beside", beside).start()
        await pause(100.0)
        ticks.clear()

    process, _ = scene.process(main)
    scene.pass_time(0.5)
    process.block()
    scene.pass_time(10.0)
    assert len(ticks) == 10


def test_clocks_differ_by_process_and_the_databases_may_jump() -> None:
    world = World(1)
    fast = world.process("fast", skew_s=60.0)
    later = world.wall_us() + 60_000_000
    assert fast.wall_us() == later
    database = Database(world, MemoryStore())
    database.ahead_us = 5_000_000
    assert database.now_us() == world.wall_us() + 5_000_000


def test_the_database_notices_a_death_after_a_while() -> None:
    scene = Scene()

    async def attend(store: Store) -> None:
        await store.register(NEWCOMER)
        await store.attend(NEWCOMER.id)
        await pause(100.0)

    async def silent(store: Store) -> list[int]:
        await pause(10.0)
        return await store.silent_workers()

    process, _ = scene.process(attend, name="attended")
    _, found = scene.process(silent, name="neighbour")
    scene.pass_time(1.0)
    process.kill()
    scene.pass_time(20.0)
    assert found == [[1]]


def test_a_hint_may_be_lost() -> None:
    for lost, heard in ((0.0, [Hint.WORK]), (1.0, [])):
        scene = Scene(Weather(hint_lost=lost))
        hints: list[Hint] = []

        async def listen(store: Store, hints: list[Hint] = hints) -> None:
            store.listen(hints.append)
            await pause(5.0)

        scene.process(listen)
        scene.pass_time(1.0)
        scene.root._data.send(Hint.WORK)
        scene.pass_time(1.0)
        assert hints == heard


def test_a_silenced_database_tells_nobody_anything() -> None:
    scene = Scene()
    hints: list[Hint] = []

    async def listen(store: Store) -> None:
        store.listen(hints.append)
        await pause(5.0)

    scene.process(listen)
    scene.pass_time(1.0)
    scene.database.silent = True
    scene.root._data.send(Hint.WAKE)
    scene.pass_time(1.0)
    assert (hints, scene.database.faults["hint lost"]) == ([], 1)


@pytest.mark.parametrize(("change", "alive"), [(PARKING, False), (LETTING_GO, True)], ids=["parking", "another"])
def test_a_process_may_die_around_a_write_that_parks_a_run(change: Change, alive: bool) -> None:
    scene = Scene(Weather(dies_parking=1.0))

    async def commit(store: Store) -> None:
        await store.commit(1, [change])
        await pause(100.0)

    process, _ = scene.process(commit)
    scene.pass_time(30.0)
    assert process.alive is alive


@pytest.mark.parametrize(("weather", "known"), [(Weather(word_unheard=1.0), "nobody knows"), (Weather(), "")])
def test_a_word_may_be_done_without_its_speaker_knowing(weather: Weather, known: str) -> None:
    scene = Scene(weather)
    words = [NewMessage(7, "nobody's thread", "", "str", b"")]
    _, ended = scene.process(lambda store: store.send(words))
    scene.pass_time(30.0)
    assert known in str(ended[0]) and isinstance(ended[0], StoreUnavailable) is bool(known)


def test_whoever_overhears_a_request_hears_it_before_it_is_done() -> None:
    heard: list[tuple[str, int]] = []
    scene = Scene()
    scene.database.overheard = lambda request: heard.append((request.verb, len(scene.root._data.workers)))
    scene.process(register)
    scene.pass_time(1.0)
    assert heard == [("open", 0), ("register", 0)] and scene.workers() == [1]


def test_a_process_inherits_no_context_from_whoever_starts_it() -> None:
    of_another: contextvars.ContextVar[str] = contextvars.ContextVar("of_another", default="nothing")
    scene = Scene()
    seen: list[str] = []

    async def main(store: Store) -> None:
        seen.append(of_another.get())

    of_another.set("something")
    scene.process(main)
    scene.pass_time(1.0)
    assert seen == ["nothing"]


def test_a_world_that_runs_in_a_circle_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.simulation.world.TURNS_AT_ONCE_MAX", 100)
    world = World(1)
    loop = world.loop("here")

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(Stuck, match="circle"):
        world.run(lambda: False, deadline_s=1.0)


def test_what_a_witness_sees_is_in_the_order_of_the_database() -> None:
    seen: list[str] = []

    class Watching:
        async def saw(self, request: Request, answer: Any) -> None:
            seen.append(request.verb)
            assert request.fate is Fate.WELL

    scene = Scene()
    scene.database.witness = Watching()
    scene.process(register)
    scene.pass_time(1.0)
    assert seen == ["open", "register"]
