"""What step bodies write about themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.demo.sidelog import LogReader, SideLog, What, in_flight, reported

BODY = ("r1", 1, "read#1")


def test_a_body_reports_its_begin_and_its_end(tmp_path: Path) -> None:
    with reported(SideLog(tmp_path), BODY):
        assert in_flight(LogReader(tmp_path).refresh(), os.getpid()) == {BODY: What.BEGIN}

    marks = LogReader(tmp_path).refresh()
    assert [(mark.body, mark.what) for mark in marks] == [(BODY, What.BEGIN), (BODY, What.END)]
    assert in_flight(marks, os.getpid()) == {}


def test_a_body_that_raises_reports_that_it_failed(tmp_path: Path) -> None:
    with pytest.raises(ValueError), reported(SideLog(tmp_path), BODY):
        raise ValueError

    assert [mark.what for mark in LogReader(tmp_path).refresh()] == [What.BEGIN, What.FAIL]


def test_an_agent_that_was_called_is_no_body_in_flight(tmp_path: Path) -> None:
    SideLog(tmp_path).write(("r1", 1, ""), What.ENTER)

    assert in_flight(LogReader(tmp_path).refresh(), os.getpid()) == {}


def test_an_open_stream_shows(tmp_path: Path) -> None:
    log = SideLog(tmp_path)
    log.write(BODY, What.BEGIN)
    log.write(BODY, What.STREAM)

    assert in_flight(LogReader(tmp_path).refresh(), os.getpid()) == {BODY: What.STREAM}


def test_a_reader_reads_each_line_once_and_no_half_line(tmp_path: Path) -> None:
    log = SideLog(tmp_path)
    reader = LogReader(tmp_path)
    log.write(BODY, What.BEGIN)
    assert len(reader.refresh()) == 1
    log.write(BODY, What.END)
    os.write(log.file, b'{"run": "r2", "st')

    assert len(reader.refresh()) == 2
    assert len(reader.refresh()) == 2


def test_a_killed_process_has_said_everything(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from perdure.demo.sidelog import SideLog, What\n"
        "log = SideLog(Path(sys.argv[1]))\n"
        "for number in range(100): log.write(('r1', 1, f'read#{number}'), What.BEGIN)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    died = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)

    assert died.returncode == -9
    assert len(LogReader(tmp_path).refresh()) == 100
