"""The parts of chaos, each by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli
from perdure.core.limits import MIB
from perdure.testing.chaos import faults
from perdure.testing.chaos.account import account_of
from perdure.testing.chaos.faults import Arms, Fault, Tormentor
from perdure.testing.chaos.fleet import Brief, Fleet, Member
from perdure.testing.chaos.orders import SHARED, order
from perdure.testing.chaos.processes import spawn
from perdure.testing.chaos.report import worst_resume_s
from perdure.testing.chaos.roads import Road
from perdure.testing.chaos.telling import RECORDER, tell
from perdure.testing.chaos.testimony import Began, Ended, Phase, Struck, Testimony, read
from perdure.testing.proxy import Proxy
from perdure.testing.speech import Postgres
from tests.chaos.places import NO_DISK, small_disk
from tests.support.waiting import becomes, until


def brief(folder: Path, *, seed: int = 7) -> Brief:
    return Brief("sqlite:///x.db", "x", folder, seed=seed, lease_s=1, at_once=1, pause_s=0)


# -- the recorder ------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_in_the_recorders_file_whoever_dies(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from perdure.testing.chaos.telling import now, tell\n"
        "from perdure.testing.chaos.testimony import Phase\n"
        "asyncio.run(tell(Phase(*now(), 'from the one who dies')))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    async def main() -> None:
        fleet = Fleet(brief(tmp_path))
        await fleet.start_recorder()
        try:
            dying = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script])
            assert dying.returncode == -signal.SIGKILL
            await tell(Phase(1, 2.0, "from the one who lives"))
            told = [line.name for line in read(fleet.brief.testimony) if isinstance(line, Phase)]
            assert told == ["from the one who dies", "from the one who lives"]
        finally:
            fleet.kill_all()
            await asyncio.sleep(0)

    asyncio.run(main())
    assert RECORDER not in os.environ


# -- what follows from the seed ----------------------------------------------------------------------------------------


def test_a_lanes_orders_follow_from_the_seed_and_no_two_have_a_number_in_common() -> None:
    lanes = [SHARED, "1", "2"]
    orders = {lane: [order(7, "x", lane=lane, nth=nth) for nth in range(1, 200)] for lane in lanes}

    assert orders == {lane: [order(7, "x", lane=lane, nth=nth) for nth in range(1, 200)] for lane in lanes}
    assert orders["1"] != [order(8, "x", lane="1", nth=nth) for nth in range(1, 200)]
    everything = [each for lane in lanes for each in orders[lane]]
    assert len({each.number for each in everything}) == len({each.key for each in everything}) == len(everything)
    assert {each.if_busy for each in everything} == {"enqueue", "join", "reject"}
    assert {each.agent for each in everything} == {"sequence", "fan", "ledger", "stumbling", "blocking"}
    assert any(each.delay_s for each in everything) and any(each.priority for each in everything)


def drawn(folder: Path, seed: int, road: Road, arms: Arms) -> list[Fault]:
    """The faults of a schedule, not done."""
    made: list[Fault] = []
    over = asyncio.Event()

    async def note(fault: Fault) -> None:
        made.append(fault)
        if len(made) == 40:
            over.set()

    async def main() -> None:
        tormentor = Tormentor(Fleet(brief(folder, seed=seed)), road, arms, pause_s=0)
        tormentor._do = note  # type: ignore[method-assign]
        await tormentor.torment(over)

    asyncio.run(main())
    return made


def test_a_seed_gives_the_same_faults_and_each_kind_has_its_turn(tmp_path: Path) -> None:
    road = Road("postgresql://x", Proxy(tmp_path), Postgres())
    first = drawn(tmp_path, 7, road, Arms(restart_command="true"))

    assert first == drawn(tmp_path, 7, road, Arms(restart_command="true"))
    assert first != drawn(tmp_path, 8, road, Arms(restart_command="true"))
    assert set(first[:14]) == set(Fault) - {Fault.TERMINATE, Fault.FILL}
    assert set(drawn(tmp_path, 7, Road("sqlite:///x.db"), Arms())) < set(first)
    assert Fault.FILL in drawn(tmp_path, 7, Road("sqlite:///x.db"), Arms(filler=tmp_path))


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--store", "memory://"], "several"),
        (["--restart-command", "true"], "--restart-command"),
        (["--filler", "."], "where chaos keeps its own files"),
        (["--filler", "nowhere"], "no directory"),
        (["--filler", "/proc"], "another file system than the store's"),
        (["--store", "postgresql://u@h/d", "--filler", "."], "a server's"),
        (["--keep", "kept"], "not empty"),
        (["--report", "nowhere/report.json"], "no directory"),
        (["--minutes", "nan"], "no number"),
        (["--minutes", "inf"], "not in the range"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_begins(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "something").touch()

    done = CliRunner().invoke(cli, ["chaos", *arguments])

    assert done.exit_code == 2 and says in done.stderr, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["kept"], "nothing is left behind"


def test_a_disk_is_full_for_a_while_and_has_room_afterwards(tmp_path: Path) -> None:
    with small_disk() as disk:
        if disk is None:
            pytest.skip(NO_DISK)

        async def main() -> None:
            arms = Arms(filler=disk)
            filling = asyncio.create_task(
                Tormentor(Fleet(brief(tmp_path)), Road("sqlite:///x.db"), arms, pause_s=0)._fill(random.Random(7))
            )
            await becomes(lambda: no_room(disk), "the disk is full")
            await filling
            assert not await no_room(disk) and list(disk.iterdir()) == []

        asyncio.run(main())


async def no_room(disk: Path) -> bool:
    other = disk / "other"
    try:
        other.write_bytes(bytes(MIB))
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        other.unlink(missing_ok=True)
    return False


def test_a_large_file_system_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FILL_BYTES_MAX", MIB)
    elsewhere = Path("/proc")

    with pytest.raises(Exception, match="of room"):
        faults.check_filler(tmp_path, f"sqlite:///{tmp_path}/x.db", elsewhere)


# -- the fleet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_process_that_was_asked_to_end_and_did_has_not_fallen(tmp_path: Path, asked_before: bool) -> None:
    async def main() -> None:
        fleet = Fleet(brief(tmp_path))
        child = spawn("worker-1", ["sh", "-c", "echo it serves runs; exec sleep 60"], log=tmp_path / "log", environ={})
        fleet.workers.append(Member(child, "old"))
        until(lambda: fleet.workers[0].begun, "it has begun")
        if asked_before:
            child.ask_to_end()

        await fleet.end_workers()

        assert child.process.returncode == -signal.SIGTERM and fleet._fallen == 0

    asyncio.run(main())


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_time_to_resume_counts_from_the_kill_to_the_next_workers_body() -> None:
    def began(pid: int, fence: int, mono: float, run: int = 1) -> Began:
        return Began(pid, mono, run, 1, "look", 1, fence, pid, "d")

    lines: list[Testimony] = [
        began(10, 1, 1.0),
        began(10, 1, 1.0, run=2),
        Ended(10, 1.5, 2, 1, "look", 1, 1, None),
        Struck(1, 2.0, Fault.KILL_WORKER, 10, ""),
        began(20, 2, 4.5),
        began(20, 2, 9.0, run=2),
    ]

    assert worst_resume_s(account_of(lines)) == 2.5, "what had ended before the kill waited for nobody"
