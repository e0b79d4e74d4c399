"""Commands as real processes: what a shell, a terminal and a supervisor see."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.testing.chaos.processes import hears_signals

APP = """
import asyncio
from dataclasses import dataclass
from perdure import App, step

app = App("shop", store="sqlite:///shop.db")

@dataclass
class Item:
    name: str
    count: int = 1

@step
async def price(item: Item) -> int:
    return len(item.name) * item.count

@step
async def hang(name: str) -> None:
    print("hanging", flush=True)
    await asyncio.Event().wait()

@app.agent
async def quote(item: Item) -> dict[str, int]:
    if item.name == "nothing":
        raise ValueError("nothing has no price\\nreally")
    return {item.name: await price(item)}

@app.agent(queue="slow")
async def stuck() -> None:
    await hang("for ever")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `perdure …` in a directory with an app; whoever is left at the end is killed."""
    (tmp_path / "shopfront.py").write_text(APP)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("import perdure\napp = perdure.App('empty')")
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=hears_signals,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=40)
    return process.returncode, out, err


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_worker_says_what_it_serves_works_and_drains_on_the_first_signal(start: Start) -> None:
    worker = start("worker", "shopfront:app", "--name", "clerk")
    first, second = line(worker), line(worker)
    started = start("start", "shopfront:app", "quote", "--args", '[{"name": "lamp", "count": 2}]', "--wait")
    code, out, err = finished(started)
    worker.send_signal(signal.SIGTERM)
    ended, last, log = finished(worker)

    assert "(clerk) serves quote, stuck on queue default, slow of sqlite:////" in first
    assert "up to 1,000 runs" in second
    assert (code, json.loads(out)) == (0, {"lamp": 8})
    assert err == "r2 on thread r2\n"
    assert (ended, log) == (0, "")
    assert last.startswith("stopped after ")


def test_the_second_signal_gives_everything_back_at_once(start: Start) -> None:
    worker = start("worker", "shopfront:app")
    assert line(worker) and line(worker)
    finished(start("start", "shopfront:app", "stuck"))
    assert line(worker) == "hanging\n"
    worker.send_signal(signal.SIGTERM)
    assert line(worker).startswith("draining: 1 run in hand")
    worker.send_signal(signal.SIGTERM)
    ended, last, _ = finished(worker)
    _, page, _ = finished(start("runs", "list", "--json", "--store", "sqlite:///shop.db"))

    assert ended == 0 and last.startswith("stopped after ")
    [run] = json.loads(page)
    assert (run["state"], run["worker"], run["recoveries"]) == ("queued", None, 0)


def test_a_run_that_fails_ends_the_wait_with_1(start: Start) -> None:
    worker = start("worker", "shopfront:app", "--queue", "default")
    assert line(worker)
    arguments = ("start", "shopfront:app", "quote", "--args", '[{"name": "nothing"}]', "--wait")
    plain = finished(start(*arguments))
    code, out, err = finished(start(*arguments, "--json"))

    assert (plain[0], plain[1]) == (1, "")
    assert plain[2].splitlines()[-1].startswith("error: run r") and "perdure retry" in plain[2]
    assert code == 1 and "error: " in err
    assert json.loads(out)["error"]["message"].startswith("nothing has no price")


def test_a_started_run_is_on_disk_and_says_what_it_waits_for(start: Start) -> None:
    arguments = (
        "start",
        "shopfront:app",
        "quote",
        "--kwargs",
        '{"item": {"name": "lamp"}}',
        "--thread-id",
        "t",
        "--key",
        "k",
    )
    code, out, err = finished(start(*arguments))
    again = finished(start(*arguments, "--json"))
    other = finished(start("start", "shopfront:app", "quote", "--args", '[{"name": "sofa"}]', "--key", "k"))

    assert (code, out) == (0, "r1 on thread t is queued; it waits for a worker: none is alive\n")
    assert "perdure worker shopfront:app" in err and "shop.db" in err
    assert json.loads(again[1])["run_id"] == "r1"
    assert other[0] == 4 and other[2].startswith("error: key 'k' started r1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("quote", "--args", '{"name": "lamp"}'), "--args takes a JSON array"),
        (("quote", "--args", "[1"), "--args is not JSON"),
        (("quote", "--kwargs", "[]"), "--kwargs takes a JSON object"),
        (("quote", "--kwargs", '{"tenant": "x"}'), "give it as --tenant"),
        (("quote", "--args", '[{"name": "lamp", "count": "two"}]'), "argument 'item'"),
        (("quote", "--args", '[{"name": "lamp", "conut": 2}]'), "no field 'conut' (did you mean 'count'?)"),
        (("quote",), "missing a required argument"),
        (("quite",), "registered are: quote, stuck"),
    ],
)
def test_a_start_that_cannot_succeed_is_refused(start: Start, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = finished(start("start", "shopfront:app", *arguments))

    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_who_interrupts_a_wait_leaves_the_run_alone(start: Start) -> None:
    waiting = start("start", "shopfront:app", "quote", "--args", '[{"name": "lamp"}]', "--wait")
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "r1 on thread r1\n"
    waiting.send_signal(signal.SIGINT)
    code, out, err = finished(waiting)
    listed = finished(start("runs", "list", "--json", "--store", "sqlite:///shop.db"))

    assert (code, out, err.splitlines()[-1]) == (130, "", "interrupted")
    assert json.loads(listed[1])[0]["state"] == "queued"


def test_a_worker_with_nothing_to_execute_says_where_agents_come_from(start: Start) -> None:
    code, out, err = finished(start("worker", "empty:app"))

    assert (code, out) == (2, "")
    assert err.startswith("error: empty:app has no agents: decorate one with @app.agent")


def test_an_error_in_the_users_module_shows_its_traceback(start: Start) -> None:
    code, _, err = finished(start("worker", "broken:app"))

    assert code == 70 and "ZeroDivisionError" in err and "broken.py" in err


@pytest.mark.parametrize("command", [("runs", "list"), ("runs", "list", "--json"), ("runs", "show", "r1"), ("--help",)])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(
    start: Start, world: str, command: tuple[str, ...]
) -> None:
    process = start(*command, *(() if command == ("--help",) else ("--store", world)))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()

    assert (process.wait(40), process.stderr.read()) == (0, "")


def on_a_terminal(world: str, tmp_path: Path, **environ: str) -> str:
    """What `runs list` writes to a terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "runs", "list", "--store", world],
        cwd=tmp_path, stdin=child, stdout=child, stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environ},
    )  # fmt: skip
    os.close(child)
    written = b""
    try:
        while part := os.read(parent, 65_536):
            written += part
    except OSError:  # Linux's way to say that the other side is closed
        pass
    os.close(parent)
    assert process.wait(40) == 0
    return written.decode()


def test_colours_are_for_terminals_and_for_those_who_want_them(start: Start, world: str, tmp_path: Path) -> None:
    coloured = on_a_terminal(world, tmp_path)
    plain = on_a_terminal(world, tmp_path, NO_COLOR="1")
    piped = finished(start("runs", "list", "--store", world))[1]

    assert "\x1b[" in coloured and "r7" in coloured
    assert "\x1b" not in plain and "r7" in plain
    assert "\x1b" not in piped and "r7" in piped
