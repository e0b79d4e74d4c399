"""From a start to a result by way of a question, a message, a child and a fork, all from the command line, beside a
real worker.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perdure.cli.exits import Exit
from perdure.cli.root import cli
from perdure.testing.chaos.processes import hears_signals
from tests.support.waiting import until

TEAM = """
from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import perdure
from perdure import App, step

app = App("team", store="sqlite:///team.db")


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Basket:
    seen: list[str] = field(default_factory=list)


@step
async def search(item: str) -> list[str]:
    return [item, item.upper()]


@app.agent
async def child(word: str) -> str:
    await perdure.sleep(0.05)
    return word + "!"


@app.agent
async def order(item: str, *, state: Basket) -> list[str]:
    state.seen.append(item)
    hits = await search(item)
    allowed = await perdure.interrupt({"buy": hits}, name="approve", schema=bool, assignee="alice", timeout="2d")
    if not allowed:
        return ["no", *state.seen]
    wanted = await perdure.receive(Order)
    async with perdure.timeout("10m"):
        greeting = await perdure.call(child, wanted.item)
    return [greeting, *state.seen]


@app.agent
async def impatient() -> str:
    return await perdure.interrupt("Now?", timeout=0.05, on_timeout=perdure.Default("never mind"))


@app.agent
async def tidy() -> None:
    try:
        await perdure.sleep("1h")
    finally:
        await search("broom")
"""

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in a directory with an app in it."""
    (tmp_path / "team_app.py").write_text(TEAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///team.db")
    yield lambda *arguments: CliRunner().invoke(cli, arguments, prog_name="perdure")
    sys.modules.pop("team_app", None)


@pytest.fixture
def worker(run: Run, tmp_path: Path) -> Iterator[None]:
    """A worker of the app."""
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", "worker", "team_app:app"], cwd=tmp_path, text=True, preexec_fn=hears_signals,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None and "serves" in process.stdout.readline()
        yield
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def document(run: Run, *command: str) -> Any:
    result = run(*command, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def in_state(run: Run, name: str, state: str) -> dict[str, Any]:
    """The run's page, when it is in that state."""

    def look() -> dict[str, Any] | None:
        page: dict[str, Any] = document(run, "runs", "show", name)
        return page if page["state"] == state else None

    found = until(look, f"{name} is {state}")
    assert found is not None
    return found


def asked(run: Run, name: str) -> str:
    """The id of the question that the run has asked, when it is parked."""
    in_state(run, name, "waiting")
    (question,) = document(run, "interrupts", "list", "--run", name)
    return str(question["id"])


@pytest.mark.usefixtures("worker")
def test_a_timeline_tells_of_questions_messages_children_and_the_time_that_nobody_worked(run: Run) -> None:
    started = document(run, "start", "team_app:app", "order", "--args", '["lamp"]', "--thread-id", "orders/7")
    name = started["run_id"]
    question = asked(run, name)
    waiting = run("runs", "show", name).stdout
    run("resume", question, "true", "--by", "alice")
    until(lambda: "a message (Order)" in (in_state(run, name, "waiting")["waiting_for"] or ""), "it waits for an order")
    run("messages", "send", "orders/7", '{"item": "tea"}', "--label", "Order")
    page = in_state(run, name, "completed")
    shown = run("runs", "show", name).stdout

    assert f"asked {question} of alice: " in waiting and f"waits for an answer to {question} from alice" in waiting
    assert "parked for" in waiting and "by now" in waiting
    assert page["result"] == ["tea!", "lamp"]
    child = page["children"][0]["run_id"]
    told = [
        "1 child: 1 completed",
        "✓ search",
        "parked for",
        "◷ approve",
        f'asked {question} of alice: {{"buy": ["lamp", "LAMP"]}}',
        "alice answered after",
        ": true",
        "parked for",
        "◷ receive",
        'took Order: {"item": "tea"}',
        "✓ start:child",
        f"started {child} on thread {child}, now completed",
        "◷ result:child",
        f"the result of {child}",
        "◷ timeout",
        "the block ended in time",
        "✓ completed",
    ]
    place = 0
    for words in told:
        assert words in shown[place:], f"{words!r} is not told, or not in this order:\n{shown}"
        place = shown.index(words, place)
    assert "┄" in shown and " parked, " in shown
    kinds = {line["key"]: line["kind"] for line in page["super_steps"][0]["steps"]}
    assert kinds == {
        "search": "step", "approve": "question", "receive": "receive", "start:child": "start",
        "result:child": "result", "timeout": "timeout",
    }  # fmt: skip
    assert [each["answered_by"] for each in page["questions"]] == ["alice"]
    assert len(page["parked"]) >= 2 and page["waits"] == []
    assert f"started by    run {name}" in run("runs", "show", child).stdout
    assert [row["run_id"] for row in document(run, "runs", "list", "--parent", name)] == [child]


@pytest.mark.usefixtures("worker")
def test_an_expired_question_shows_its_default_and_a_cancelled_run_what_it_cleaned_up(run: Run) -> None:
    late = document(run, "start", "team_app:app", "impatient")["run_id"]
    tidy = document(run, "start", "team_app:app", "tidy")["run_id"]
    in_state(run, late, "completed")
    in_state(run, tidy, "waiting")
    cancelled = run("cancel", tidy, "--reason", "enough")
    in_state(run, tidy, "cancelled")

    assert 'nobody answered in time; its default stands: "never mind"' in run("runs", "show", late).stdout
    assert cancelled.stdout.startswith(f"{tidy} will end as cancelled")
    page = run("runs", "show", tidy).stdout
    assert page.index("parked for") < page.index("✓ search") < page.index("✗ cancelled: enough")


@pytest.mark.usefixtures("worker")
def test_a_fork_goes_on_from_a_checkpoint_with_another_state(run: Run) -> None:
    name = document(run, "start", "team_app:app", "order", "--args", '["lamp"]', "--thread-id", "t")["run_id"]
    asked(run, name)
    unchanged = run("fork", "t", "--run", name, "--thread-id", "t/2")
    forked = document(
        run, "fork", "t", "--app", "team_app:app", "--state", '{"seen": ["before"]}', "--args", '["tea"]',
        "--thread-id", "t/3",
    )  # fmt: skip
    run("resume", asked(run, forked["run_id"]), "false")

    assert "on thread t/2 goes on from super-step 1 of t, with none of its recorded steps" in unchanged.stdout
    assert in_state(run, forked["run_id"], "completed")["result"] == ["no", "before", "tea"]
    assert document(run, "runs", "show", name)["state"] == "waiting", "the original stays as it is"


def test_a_fork_may_take_over_what_was_recorded_before_a_key(run: Run) -> None:
    name = document(run, "start", "team_app:app", "order", "--args", '["lamp"]', "--thread-id", "t")["run_id"]
    wrong = {
        ("t", "--key", "nothing"): (Exit.NOT_FOUND, "has no record under 'nothing'"),
        ("t", "--super-step", "7"): (Exit.NOT_FOUND, "has no super-step 7"),
        ("t", "--run", "r99"): (Exit.NOT_FOUND, "perdure runs list"),
        ("t", "--run", "x"): (Exit.USAGE, "look like r12"),
        ("nobody",): (Exit.NOT_FOUND, "perdure threads list"),
        ("t", "--thread-id", "t"): (Exit.CONFLICT, "exists already"),
        ("t", "--state", "{}"): (Exit.USAGE, "--app MODULE:APP"),
        ("t", "--args", "[1]", "--app", "team_app:app"): (Exit.USAGE, "argument 'item'"),
        ("t", "--args", "{}", "--app", "team_app:app"): (Exit.USAGE, "--args takes a JSON array"),
        ("t", "--state", '{"seen": 3}', "--app", "team_app:app"): (Exit.USAGE, "no state of agent order"),
        ("t", "--state", "@none.json", "--app", "team_app:app"): (Exit.USAGE, "none.json cannot be read"),
    }
    for command, (code, said) in wrong.items():
        result = run("fork", *command)

        assert (result.exit_code, result.stdout) == (code, ""), command
        assert said in result.stderr and result.stderr.count("\n") == 1
    assert [row["run_id"] for row in document(run, "runs", "list")] == [name]


# -- starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", ["1h", "2h", "2020-01-01T09:00+01:00"])
def test_a_run_that_may_not_begin_before_its_deadline_is_refused(run: Run, deadline: str) -> None:
    result = run("start", "team_app:app", "tidy", "--delay", "2h", "--deadline", deadline)

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "") and "before --delay 2h is over" in result.stderr


def test_a_deadline_is_so_long_from_now_or_a_time(run: Run) -> None:
    soon = document(run, "start", "team_app:app", "tidy", "--deadline", "2h")
    then = document(run, "start", "team_app:app", "tidy", "--deadline", "2099-12-01T09:00+01:00")
    page = run("runs", "show", soon["run_id"]).stdout

    assert soon["deadline_at"] is not None and "deadline" in page and "in 1 h 59 min" in page
    assert then["deadline_at"] == "2099-12-01T08:00:00.000000Z"
    mistakes = {"soon": "'soon' is no time; give seconds", "2099-12-01T09:00": "time zone", "2099-99-01": "no time"}
    for wrong, said in mistakes.items():
        result = run("start", "team_app:app", "tidy", "--deadline", wrong)
        assert (result.exit_code, result.stdout) == (Exit.USAGE, "") and said in result.stderr


def test_a_start_may_have_a_budget(run: Run) -> None:
    words = ("--budget", "usd=5,tokens=100", "--budget", "steps=3, seconds=2m")
    name = document(run, "start", "team_app:app", "tidy", *words)["run_id"]

    budget = document(run, "budgets", "show", f"run:{name}")
    assert budget["limits"] == {"usd": 5.0, "tokens": 100, "steps": 3, "seconds": 120.0}
    mistakes = {
        "5": "--budget '5' is no limit; give usd=5",
        "eur=5": "(of usd, tokens, steps, seconds)",
        "usd=much": "--budget usd 'much' is no number",
        "usd=1,usd=2": "names usd twice",
        "tokens=1.5": "--budget tokens '1.5' is no whole number",
        "seconds=-1": "--budget seconds '-1' is no time",
    }
    for wrong, said in mistakes.items():
        result = run("start", "team_app:app", "tidy", "--budget", wrong)
        assert (result.exit_code, result.stdout) == (Exit.USAGE, "") and said in result.stderr


@pytest.mark.usefixtures("worker")
def test_a_start_that_meets_a_question_says_what_can_become_of_it(run: Run) -> None:
    arguments = ("start", "team_app:app", "order", "--args", '["lamp"]', "--thread-id", "t")
    first = document(run, *arguments)["run_id"]
    question = asked(run, first)

    refused = run(*arguments)
    queued = run(*arguments, "--if-busy", "enqueue")
    displacing = document(run, *arguments, "--if-busy", "interrupt")

    assert refused.exit_code == Exit.CONFLICT
    assert f"run {first} has asked {question}" in refused.stderr and "--if-busy" in refused.stderr
    assert f"`perdure interrupts show {question}`" in refused.stderr
    assert queued.exit_code == 0 and f"it waits for run {first}" in queued.stdout
    cancelled = in_state(run, first, "cancelled")
    assert cancelled["cancel"] == f"{displacing['run_id']} was started in its place"
