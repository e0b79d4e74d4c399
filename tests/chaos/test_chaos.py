"""`perdure chaos` itself, with real processes: a few seconds on each store, under a fixed seed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.testing.chaos.faults import Fault
from perdure.testing.chaos.testimony import FILE, Told, read
from tests.chaos.on_both import commands
from tests.support.processes import ROOT
from tests.support.waiting import until

MINUTES = "0.13"
SEED = "7"

EVERYWHERE = {
    Fault.KILL_WORKER, Fault.KILL_CLIENT, Fault.PAUSE_WORKER, Fault.FREEZE_WORKER, Fault.FREEZE_CLIENT, Fault.DEPLOY,
}  # fmt: skip
ON_THE_WAY = {Fault.CUT, Fault.BLACK_HOLE, Fault.VANISH, Fault.DELAY, Fault.LOSE_ANSWERS}


def started(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """The command, begun, with its report to be in that folder."""
    command = [sys.executable, "-m", "perdure", "chaos", *arguments, "--report", str(folder / "report.json")]
    return subprocess.Popen(
        [*command, "--keep", str(folder / "kept")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )  # fmt: skip


def ended(folder: Path, process: subprocess.Popen[str], *, code: int = 0) -> dict[str, Any]:
    """Its report, when it has ended with this code."""
    page, _ = process.communicate()
    assert process.returncode == code, page
    assert max(map(len, page.splitlines())) <= 100 + len(str(folder)), page
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def is_sound(report: dict[str, Any], kinds: set[Fault]) -> None:
    """Much has happened, and nothing is wrong."""
    assert report["found"] == [] and report["over"]
    assert kinds <= set(report["faults"]) and sum(report["faults"].values()) >= 12
    assert report["runs"]["completed"] > 30 and report["runs"]["failed"] > 0
    assert report["recoveries"] > 0 and report["repeated"] <= report["in_flight"]


@pytest.mark.timeout(120)
@pytest.mark.postgres
def test_some_seconds_of_chaos_on_sqlite_and_on_postgres_break_no_rule(tmp_path: Path) -> None:
    """Both at once: they wait for leases and for the ends of faults most of the time."""
    kinds = {"sqlite": EVERYWHERE, "postgres": EVERYWHERE | ON_THE_WAY | {Fault.RESTART}}
    with commands() as each:
        if "--filler" in each["sqlite"]:
            kinds["sqlite"] = EVERYWHERE | {Fault.FILL}
        folders = {name: tmp_path / name for name in each}
        for folder in folders.values():
            folder.mkdir()
        running = {
            name: started(folders[name], [*where, "--minutes", MINUTES, "--seed", SEED])
            for name, where in each.items()
        }  # fmt: skip
        reports = {name: ended(folders[name], process) for name, process in running.items()}

    for name, report in reports.items():
        is_sound(report, kinds[name])


def in_full_swing(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """The command, some of whose runs have ended, and its children."""
    process = started(folder, ["--minutes", "5", "--seed", SEED])
    testimony = folder / "kept" / FILE
    until(lambda: testimony.exists() and any(isinstance(line, Told) for line in read(testimony)), "a run has ended")
    return process, psutil.Process(process.pid).children(recursive=True)


def test_sigterm_ends_every_process_and_what_there_is_is_judged(tmp_path: Path) -> None:
    process, children = in_full_swing(tmp_path)

    process.send_signal(signal.SIGTERM)

    report = ended(tmp_path, process, code=130)
    assert not report["over"] and report["found"] == [] and report["runs"]
    assert len(children) >= 6
    assert [child.pid for child in children if child.is_running()] == []


def test_children_end_when_their_director_is_killed_also_those_that_were_stopped(tmp_path: Path) -> None:
    process, children = in_full_swing(tmp_path)
    for child in children:
        child.suspend()

    process.kill()

    process.communicate()
    until(lambda: not any(lives(child) for child in children), "all of them have ended")


def lives(child: psutil.Process) -> bool:
    """Whether it is there, and more than an entry that nobody has asked for yet."""
    return bool(child.is_running() and child.status() != psutil.STATUS_ZOMBIE)
