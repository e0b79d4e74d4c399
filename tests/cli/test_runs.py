"""`perdure runs`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.cells import cell_len

from perdure.cli.facts import Fact
from perdure.cli.run_pages import note
from perdure.core.records import ErrorInfo, RunState
from perdure.runtime.info import RunInfo
from perdure.store.sqlite.store import SQLiteStore
from tests.cli.conftest import Run
from tests.cli.rows import run
from tests.cli.world import LONG


def documents(perdure: Run, *arguments: str) -> list[dict[str, Any]]:
    result = perdure("runs", "list", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    listed: list[dict[str, Any]] = json.loads(result.stdout)
    return listed


def shown(perdure: Run, run: str, *arguments: str, columns: int = 100) -> str:
    result = perdure("runs", "show", run, *arguments, columns=columns)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_the_list_is_newest_first_with_a_word_on_each(perdure: Run) -> None:
    result = perdure("runs", "list")

    rows = result.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["run", "r7", "r6", "r5", "r4", "r3", "r2", "r1"]
    notes = dict(zip([row.split()[0] for row in rows], rows, strict=True))
    assert "on w11" in notes["r6"]
    assert "due in 1 d 12 h" in notes["r5"]
    assert "behind r3, held" in notes["r4"]
    assert "held: diverged" in notes["r3"]
    assert "StepFailed: step" in notes["r2"]
    assert "recovered 1×" in notes["r1"]


def test_a_list_that_is_empty_for_a_misspelt_name_says_which_there_are(perdure: Run) -> None:
    def said(*arguments: str) -> str:
        return perdure(*arguments).stdout

    assert said("runs", "list", "--agent", "reserch").startswith("no run of agent 'reserch' (did you mean research?)")
    assert said("runs", "list", "--tenant", "acne") == (
        "no run of tenant 'acne' (did you mean acme?); there are: acme\n"
    )
    assert said("runs", "list", "--tag", "urgent", "--tag", "nigthly") == (
        "no run with tag 'nigthly' (did you mean nightly?); there are: nightly, urgent\n"
    )
    assert said("runs", "list", "--agent", "research", "--state", "cancelled") == "no runs\n"
    assert said("threads", "list", "--agent", "cruch").startswith("no thread of agent 'cruch' (did you mean crunch?)")
    assert said("deliveries", "list", "--tenant", "acne").startswith("no run of tenant 'acne' (did you mean acme?)")
    assert said("interrupts", "list", "--tenant", "acme") == "no open questions\n"
    assert documents(perdure, "--agent", "reserch") == []


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("command", [("runs", "list"), ("threads", "list"), ("workers", "list", "--all")])
def test_a_list_fits_its_width_whatever_is_in_it(perdure: Run, command: tuple[str, ...], columns: int) -> None:
    result = perdure(*command, columns=columns)

    assert max(cell_len(line) for line in result.stdout.splitlines()) <= columns


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("run", ["r1", "r2", "r3", "r4", "r5", "r6", "r7"])
@pytest.mark.parametrize("full", [(), ("--full",)])
def test_a_run_fits_its_width(perdure: Run, run: str, columns: int, full: tuple[str, ...]) -> None:
    page = shown(perdure, run, *full, columns=columns)

    assert max(cell_len(line) for line in page.splitlines()) <= columns


def test_the_first_fields_of_a_run_are_those_of_run_info(perdure: Run) -> None:
    """But for the note on a result that does not load: the command line shows every value as it is recorded."""
    fields, of_run_info = list(documents(perdure)[0]), [name for name in RunInfo.__slots__ if name != "result_note"]

    assert fields[: len(of_run_info)] == of_run_info


def test_a_listed_run_carries_its_result_or_its_error_and_what_it_waits_for(perdure: Run) -> None:
    by_id = {document["run_id"]: document for document in documents(perdure)}

    assert by_id["r1"]["result"] == {"answer": "Rayleigh scattering", "sources": ["a", "c"]}
    assert (by_id["r1"]["recoveries"], by_id["r1"]["tags"]) == (1, ["nightly", "urgent"])
    assert by_id["r2"]["error"]["type"] == "perdure.errors.StepFailed"
    assert (by_id["r3"]["held_reason"], by_id["r3"]["remedy"]) == (
        "diverged",
        "deploy code that calls the step with the recorded arguments, then `perdure release r3`",
    )
    assert "r3" in by_id["r4"]["waiting_for"]
    assert by_id["r6"]["worker"] == "w11"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--state", "held"), ["r3"]),
        (("--agent", "research"), ["r4", "r3", "r2", "r1"]),
        (("--thread-id", "topics/7"), ["r2", "r1"]),
        (("--thread", LONG), ["r5"]),
        (("--tenant", "acme"), ["r1"]),
        (("--tag", "nightly", "--tag", "urgent"), ["r1"]),
        (("--tag", "nightly", "--tag", "weekly"), []),
        (("--limit", "2"), ["r7", "r6"]),
        (("--limit", "2", "--after", "r6"), ["r5", "r4"]),
    ],
)
def test_a_list_can_be_narrowed_and_paged(perdure: Run, arguments: tuple[str, ...], expected: list[str]) -> None:
    assert [document["run_id"] for document in documents(perdure, *arguments)] == expected


def test_a_full_page_says_how_to_go_on(perdure: Run) -> None:
    assert "more: --after r6\n" in perdure("runs", "list", "--limit", "2").stdout


def test_a_full_last_page_does_not_say_that_there_is_more(perdure: Run) -> None:
    threads = len(json.loads(perdure("threads", "list", "--json").stdout))

    runs, last = perdure("runs", "list", "--limit", "7"), perdure("runs", "list", "--limit", "3", "--after", "r4")

    assert "r1 " in runs.stdout and "--after" not in runs.stdout + last.stdout
    assert "--after" not in perdure("threads", "list", "--limit", str(threads)).stdout
    assert "more: --after stuck\n" in perdure("threads", "list", "--limit", str(threads - 1)).stdout


def test_a_worker_without_a_sign_of_life_is_not_called_alive(perdure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(store: SQLiteStore) -> list[int]:
        return [11]

    monkeypatch.setattr(SQLiteStore, "silent_workers", silent)

    shown, workers = perdure("runs", "show", "r6"), perdure("workers", "list")
    doctor = perdure("doctor")

    assert "no sign of life; its lease ends in" in shown.stdout and "pid 4011 on box  alive" not in shown.stdout
    assert "no sign of life" in workers.stdout and "alive" not in workers.stdout
    assert doctor.exit_code == 1 and "1 worker without a sign of life (w11), with 1 run in hand" in doctor.stdout
    assert json.loads(perdure("runs", "show", "r6", "--json").stdout)["workers"][0]["silent"] is True


def test_a_timeline_tells_the_whole_story(perdure: Run) -> None:
    page = shown(perdure, "r1")

    told = [
        "super-step 1",
        "✓ plan",
        "try failed: ConnectError: connection refused",
        "w10 died, w11 went on",
        "cut off: its worker went away",
        "✓ search#1",
        "1.45 s",
        "super-step 2",
        "✓ answer",
        "✓ completed",
        '{"answer": "Rayleigh scattering", "sources": ["a", "c"]}',
    ]
    places = [page.index(line) for line in told]
    assert places == sorted(places)
    assert "claimed 2×; its worker died 1×" in page
    assert "w10  alpha, pid 4010 on box  dead" in page


def test_a_failed_run_shows_why_and_the_command_that_tries_again(perdure: Run) -> None:
    page = shown(perdure, "r2")

    assert "failed for good: ValueError: no such topic: 'sky'" in page
    assert "✗ failed: StepFailed" in page
    assert "perdure retry r2" in page


@pytest.mark.parametrize(
    ("run", "what", "remedy"),
    [
        (
            "r3",
            "held: diverged\nstep 'search' was recorded with other arguments",
            "perdure release r3",
        ),
        ("r4", "waits for run r3, which is held (diverged)", "perdure runs show r3"),
        ("r5", "waits for its time: not due for 1 d 12 h", ""),
        ("r6", "running on w11; ", ""),
        ("r7", "waits for", ""),
    ],
)
def test_a_run_that_does_not_end_says_where_it_stands(perdure: Run, run: str, what: str, remedy: str) -> None:
    page = shown(perdure, run, columns=140)

    assert what in page and remedy in page


def test_full_shows_every_value_and_every_argument(perdure: Run) -> None:
    page = shown(perdure, "r1", "--full")

    assert 'arguments  ["why is the sky blue"]' in page
    assert 'value  {"queries": ["sky", "light"]}' in page
    assert 'arguments  ["and then?"]' in page


def test_a_run_as_json_has_every_try_and_with_full_every_value(perdure: Run) -> None:
    document = json.loads(shown(perdure, "r1", "--json", "--full"))

    first, second = document["super_steps"]
    assert [(line["key"], line["attempt"], line["state"]) for line in first["steps"]] == [
        ("plan", 1, "ok"),
        ("search", 1, "ok"),
        ("search#1", 1, "failed"),
        ("search#1", 2, "cut off"),
        ("search#1", 3, "ok"),
    ]
    assert first["steps"][0]["value"] == {"queries": ["sky", "light"]}
    assert first["steps"][2]["error"]["type"] == "httpx.ConnectError"
    assert first["steps"][4]["duration_s"] == 1.45
    assert second["arguments"] == ["and then?"]
    assert [worker["worker"] for worker in document["workers"]] == ["w10", "w11"]


def test_a_terminal_without_the_characters_gets_plain_ones(perdure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.terminal.page.Page.encoding", "ascii")

    page = shown(perdure, "r1")

    assert "+ plan" in page and "✓" not in page


def test_the_note_of_a_failed_run_begins_with_the_cause() -> None:
    error = ErrorInfo("perdure.errors.RunFailed", "step 'result:refund' of run r17: child r18 failed: no funds", "")
    failed = Fact(run(state=RunState.FAILED), None, None, result=None, result_size=None, error=error)

    assert note(failed).text == "RunFailed: child r18 failed: no funds"


def test_a_run_that_was_cancelled_before_it_began_ended_then(perdure: Run) -> None:
    perdure("cancel", "r5")

    page = shown(perdure, "r5")
    assert "before it began" in page and "after the start" not in page
