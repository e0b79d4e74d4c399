"""Several processes on one file: they take turns, hear each other, and see each other's death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Deliver
from perdure.core.deliveries import NewDelivery
from perdure.errors import StoreError, StoreUnavailable
from perdure.store.protocol import Hint, Transaction
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.files import WriterLock, side_directory
from tests.store.sqlite_child import ask, begin, employ, step

SCRIPT = Path(__file__).with_name("sqlite_child.py")
PATIENCE_S = 20.0


class Child:
    """Another process on the file."""

    def __init__(self, what: str, path: Path) -> None:
        command = [sys.executable, str(SCRIPT), what, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self, word: str) -> list[str]:
        """The next line that begins with the word, without it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, *rest = line.split()
            if first == word:
                return rest
        raise AssertionError(f"the child ended before it told {word!r}")

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@pytest.fixture
def hire(path: Path) -> Iterator[Callable[[str], Child]]:
    """Start other processes; they end with the test."""
    children: list[Child] = []

    def hire(what: str) -> Child:
        children.append(Child(what, path))
        return children[-1]

    yield hire
    for child in children:
        child.end()


def on_store(path: Path, body: Callable[[SQLiteStore], Awaitable[None]]) -> None:
    """Run the body on the opened file."""

    async def main() -> None:
        store = SQLiteStore(path)
        await store.open()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await body(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_new_file_may_be_opened_by_several_processes_at_once(path: Path, hire: Callable[[str], Child]) -> None:
    children = [hire("open_only") for _ in range(5)]
    for child in children:
        child.hear("ready")

    for child in children:
        child.say()

    for child in children:
        child.hear("opened")
        assert child.process.wait() == 0


def test_two_processes_take_turns_to_write(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("write")
    (run,) = child.hear("writing")

    async def body(store: SQLiteStore) -> None:
        worker = await employ(store)
        claimed = await begin(store, worker, "own")
        before = len(await store.checkpoints(int(run)))
        waits = []
        for number in range(1, 101):
            began = time.perf_counter()
            await store.commit(worker, [step(claimed, number)])
            waits.append(time.perf_counter() - began)
        # Neither starves: the other one got its turns meanwhile, and ours came without a second's sleep.
        assert len(await store.checkpoints(int(run))) > before
        assert sorted(waits)[50] < 0.5

    on_store(path, body)


def test_what_was_acknowledged_outlives_kill_9(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("write")
    (run,) = child.hear("writing")
    for _ in range(50):
        (number,) = child.hear("wrote")

    child.signal(signal.SIGKILL)

    async def body(store: SQLiteStore) -> None:
        kept = [row.seq for row in await store.checkpoints(int(run)) if row.key]
        assert kept == list(range(1, len(kept) + 1)) and len(kept) >= int(number)

    on_store(path, body)


def test_a_killed_process_lets_go_of_the_writer_lock(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("write")
    child.hear("wrote")
    child.signal(signal.SIGSTOP)  # perhaps in the middle of a transaction
    child.signal(signal.SIGKILL)

    async def body(store: SQLiteStore) -> None:
        claimed = await begin(store, worker := await employ(store), "own")
        await store.commit(worker, [step(claimed, 1)])

    on_store(path, body)


def test_files_that_may_not_grow_are_typed_and_lose_nothing(hire: Callable[[str], Child]) -> None:
    child = hire("fill")

    assert "I/O error" in " ".join(child.hear("refused"))
    number, _, *kept = child.hear("acknowledged")
    assert kept == [str(n) for n in range(1, int(number) + 1)]
    assert child.hear("went") == ["on"]


@pytest.mark.parametrize("what", ["attend", "attend_and_fork"])
def test_the_death_of_an_attending_process_shows_at_once(path: Path, hire: Callable[[str], Child], what: str) -> None:
    child = hire(what)
    (worker,) = child.hear("attending")

    async def body(store: SQLiteStore) -> None:
        assert await store.silent_workers() == []

        child.signal(signal.SIGKILL)
        child.process.wait()

        assert await store.silent_workers() == [int(worker)]
        await store.take_over([int(worker)], recoveries_max=5)
        assert await store.silent_workers() == []
        assert not (side_directory(path) / f"{worker}.lock").exists()

    on_store(path, body)


def test_hints_cross_processes(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("listen")
    child.hear("listening")

    async def body(store: SQLiteStore) -> None:
        await store.start([await ask(store, "t")])
        assert await asyncio.to_thread(child.hear, "hint") == [Hint.WORK.value]

    on_store(path, body)


def test_what_is_handed_over_is_heard_by_other_processes(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("listen")
    child.hear("listening")

    async def body(store: SQLiteStore) -> None:
        worker = await employ(store)
        claimed = await begin(store, worker, "t")
        assert await asyncio.to_thread(child.hear, "hint") == [Hint.WORK.value]
        record = step(claimed, 1)
        parcel = NewDelivery(await store.reserve_ids(1), "bus", "t", "key", b"data")
        at = (claimed.run, claimed.fence, claimed.thread, record.super_step, record.key)
        assert await store.commit(worker, [Deliver(*at, record, parcel)]) == CommitOutcome()
        assert await asyncio.to_thread(child.hear, "hint") == [Hint.DELIVER.value]

    on_store(path, body)


def test_a_transaction_that_is_killed_leaves_nothing_and_lets_go_of_the_file(
    path: Path, hire: Callable[[str], Child]
) -> None:
    async def body(store: SQLiteStore) -> None:
        child = hire("hang")
        worker, run = map(int, await asyncio.to_thread(child.hear, "hanging"))
        renewal = asyncio.create_task(store.renew(worker, 60_000_000))
        assert await store.get_runs([run])  # who only reads waits for nobody
        child.signal(signal.SIGKILL)
        assert await renewal

        async def look(tx: Transaction) -> AppendCheckpoint:
            assert await tx.fetch("select name from sqlite_master where name = 'mine'") == []
            return step(claimed, 1)

        own = await employ(store)
        claimed = await begin(store, own, "t")
        place = (claimed.run, claimed.super_step, "step#1")
        assert await store.transact(own, place, look) == CommitOutcome()
        assert [row.key for row in await store.checkpoints(run)] == [""]

    on_store(path, body)


def test_an_idle_process_takes_a_start_within_milliseconds(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("answer")
    child.hear("listening")

    async def body(store: SQLiteStore) -> None:
        latencies = []
        for number in range(20):
            await store.start([await ask(store, f"t{number}")])
            taken, _ = await asyncio.to_thread(child.hear, "started")
            latencies.append(float(taken))
        assert sorted(latencies)[10] < 500

    on_store(path, body)


def test_a_lock_that_nobody_hands_over_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.sqlite.store.ANSWER_S", 0.05)

    async def body(store: SQLiteStore) -> None:
        lock = WriterLock(side_directory(path))
        with lock.held():
            with pytest.raises(StoreUnavailable, match=r"writer\.lock"):
                await store.reserve_ids(1)
        lock.close()
        monkeypatch.setattr("perdure.store.sqlite.store.ANSWER_S", PATIENCE_S)
        assert await store.reserve_ids(1) > 0

    on_store(path, body)


def test_opening_removes_what_dead_workers_left(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("attend")
    (worker,) = child.hear("attending")

    async def end(store: SQLiteStore) -> None:
        child.signal(signal.SIGKILL)
        child.process.wait()
        await store.take_over([int(worker)], recoveries_max=5)
        (side_directory(path) / f"{worker}.lock").touch()

    async def look(store: SQLiteStore) -> None:
        assert not (side_directory(path) / f"{worker}.lock").exists()

    on_store(path, end)
    on_store(path, look)


def test_a_fifo_without_a_reader_is_removed(path: Path, hire: Callable[[str], Child]) -> None:
    child = hire("listen")
    child.hear("listening")

    async def body(store: SQLiteStore) -> None:
        assert len(list(side_directory(path).glob("*.wake"))) == 1

        child.signal(signal.SIGKILL)
        child.process.wait()
        await store.start([await ask(store, "t")])

        assert list(side_directory(path).glob("*.wake")) == []

    on_store(path, body)


def test_a_listener_that_stops_leaves_no_fifo(path: Path) -> None:
    async def body(store: SQLiteStore) -> None:
        stop = store.listen(lambda hint: None)
        assert len(list(side_directory(path).glob("*.wake"))) == 1
        stop()
        assert list(side_directory(path).glob("*.wake*")) == []

    on_store(path, body)


def test_a_forked_child_may_not_use_its_parents_store(path: Path) -> None:
    async def body(store: SQLiteStore) -> None:
        child = os.fork()
        if child == 0:
            try:
                store._opened.writer.submit(lambda tx: None)
            except StoreError:
                os._exit(0)
            os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    on_store(path, body)
