"""Stores that cannot be used: an address with a slip in it, a file that cannot be written, a disk that is full."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import pwd
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure import App, step, telemetry
from perdure.core.limits import MIB
from perdure.core.records import RunState
from perdure.errors import PerdureError, StoreError, StoreUnavailable, UsageError
from perdure.runtime import patience
from tests.support import postgres
from tests.support.agents import app_on
from tests.support.children import run_child
from tests.support.sidelog import VARIABLE, SideLog, say
from tests.support.waiting import becomes

ROOMY_MIB = 64

SLIPS = [
    ("postgres:/user@host/db", "postgresql://"),
    ("postgresq://user@host/db", "postgresql://"),
    ("sqlite://runs.db", "sqlite:///"),
    ("runs.db", "sqlite:///"),
    ("sqlite:///runs.db?synchronus=off", "synchronous"),
    ("mysql://user@host/db", "postgresql://"),
]


@pytest.mark.parametrize(("url", "remedy"), SLIPS)
def test_an_address_with_a_slip_is_refused_when_the_app_is_made(url: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        App("slip", store=url)


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    async def main() -> None:
        async with app_on(f"postgresql://user:secret@/db?host={tmp_path}"):
            raise AssertionError("it opened")

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(main())
    assert str(tmp_path) in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.postgres
def test_a_database_that_does_not_exist_is_an_error_that_says_so() -> None:
    url = postgres.shared().fresh_url().replace("/postgres?", "/nowhere?")

    async def main() -> None:
        async with app_on(url):
            raise AssertionError("it opened")

    with pytest.raises(StoreError, match="nowhere"):
        asyncio.run(main())


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam,\n" * 100)

    async def main() -> None:
        async with app_on(f"sqlite:///{path}"):
            raise AssertionError("it opened")

    with pytest.raises(StoreError, match=r"letter\.txt"):
        asyncio.run(main())
    assert path.read_text().startswith("Dear Sir")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with app_on(f"sqlite:///{tmp_path}/no/such/folder/runs.db"):
            raise AssertionError("it opened")

    with pytest.raises(StoreError, match="no/such/folder"):
        asyncio.run(main())


# -- a file that may not be written --------------------------------------------------------------------------


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user reaches."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def use_read_only(log: str, path: str) -> None:
    """In a process of its own, as a user who may read the file and not write it."""
    os.environ[VARIABLE] = log
    Path(log).touch()
    os.chmod(log, 0o666)
    if os.geteuid() == 0:
        importlib.import_module("concurrent.futures.thread")  # later on it may lie where nobody may read
        os.setuid(pwd.getpwnam("nobody").pw_uid)

    async def main() -> None:
        try:
            async with app_on(f"sqlite:///{path}") as app:
                await app.start("single", "tea")
        except PerdureError as error:
            say("refused", type=type(error).__name__, store=isinstance(error, StoreError), text=str(error))
        else:
            say("written")

    asyncio.run(main())


def test_a_read_only_file_is_a_typed_error_that_names_it(public_folder: Path) -> None:
    path, log = public_folder / "runs.db", SideLog(public_folder / "log.jsonl")

    async def fill() -> None:
        async with app_on(f"sqlite:///{path}") as app:
            await app.start("single", "tea")

    asyncio.run(fill())
    before = _dump(path)
    for each in (path, *public_folder.glob("runs.db-*")):
        each.chmod(0o555 if each.is_dir() else 0o444)
    public_folder.chmod(0o555)
    try:
        assert run_child(use_read_only, str(log.path), str(path)) == 0
    finally:
        public_folder.chmod(0o755)
    (refused,) = log.lines("refused")
    assert refused["store"] and str(path.name) in refused["text"], refused
    assert any(word in refused["text"] for word in ("permission", "write", "read-only")), refused
    assert _dump(path) == before


def _dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [line for line in connection.iterdump() if "runs" in line]
    finally:
        connection.close()


# -- a disk that is full -------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Callable[[], None]]:
    """Make the folder a file system of a few MiB; the value makes room. Without the right to mount one: a limit past
    which no file of this process may grow."""

    def mount(size: int, *options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={size}m"]), "perdure-test", str(folder)]
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    if mount(mib):
        try:
            yield lambda: assert_done(mount(ROOMY_MIB, "remount"))
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (mib * MIB, limits[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def assert_done(done: bool) -> None:
    assert done


def test_a_full_disk_refuses_starts_and_lets_workers_wait_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.3)
    disk = tmp_path / "disk"
    disk.mkdir()
    bodies: list[int] = []
    app = App("full", store=f"sqlite:///{disk}/runs.db")

    @step
    async def produce(number: int) -> bytes:
        bodies.append(number)
        return os.urandom(200_000)

    @app.agent
    async def wait(text: str) -> int:
        return len(text)

    @app.agent
    async def work(number: int) -> int:
        return len(await produce(number))

    async def fill() -> int:
        """Start runs until the disk is full; how many were accepted."""
        for number in range(100):
            try:
                await app.start("wait", "x" * 300_000 + str(number), delay="1h")
            except StoreError as error:
                assert re.search("disk|space", str(error)), error
                return number
        raise AssertionError("the disk never became full")

    async def main(make_room: Callable[[], None]) -> None:
        async with app:
            handles = [await app.start("work", number) for number in range(5)]
            accepted = await fill()
            make_room()
            assert len(await app.runs(agent="wait")) == accepted, "what was accepted is there, what was refused is not"
            async with app.worker(poll_s=0.05, lease_s=30):
                assert [await handle.result(timeout=20) for handle in handles] == [200_000] * 5
            assert sorted(bodies) == [0, 1, 2, 3, 4], "no body was run twice"

    with small_disk(disk, 5) as make_room:
        asyncio.run(main(make_room))


def test_a_worker_on_a_full_disk_waits_with_what_it_has_until_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    bodies: list[int] = []
    app = App("full", store=f"sqlite:///{disk}/runs.db")

    @step
    async def produce(number: int) -> bytes:
        bodies.append(number)
        return os.urandom(MIB)

    @app.agent
    async def work(number: int) -> int:
        return len(await produce(number))

    async def main(make_room: Callable[[], None]) -> None:
        async with app:
            handles = [await app.start("work", number) for number in range(10)]
            failures: list[str] = []
            stop = telemetry.subscribe(lambda event, fields: failures.append(event) if "failed" in event else None)
            async with app.worker(poll_s=0.05, lease_s=30, concurrency=2):
                await becomes(lambda: _any(failures), "a commit fails")
                make_room()
                assert [await handle.result(timeout=20) for handle in handles] == [MIB] * 10
            stop()
            assert sorted(bodies) == list(range(10)), "no body was run twice"
            assert {run.state for run in await app.runs()} == {RunState.COMPLETED}

    with small_disk(disk, 5) as make_room:
        asyncio.run(main(make_room))


async def _any(found: list[str]) -> bool:
    return bool(found)
