"""`perdure interrupts`: the inbox, and one question."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from rich.cells import cell_len

from perdure.client.inbox import InterruptInfo
from perdure.core.records import InterruptState
from tests.cli.asked import Asked
from tests.cli.conftest import Run


def listed(at_store: Run, *arguments: str) -> list[dict[str, Any]]:
    result = at_store("interrupts", "list", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_the_inbox_holds_the_open_questions_of_all_agents_oldest_first(at_store: Run, there: Asked) -> None:
    result = at_store("interrupts", "list")

    rows = result.stdout.splitlines()
    assert rows[0].split() == ["id", "agent", "thread", "asked", "question", "for", "expires"]
    assert [row.split()[0] for row in rows[1:]] == [
        there.approve, there.free, there.text, there.pick, there.flag, *there.two,
    ]  # fmt: skip
    assert 'approve: {"buy": "lamp", "cents": 1900}' in rows[1]
    assert "alice" in rows[1] and "in 1 d 23 h" in rows[1]


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("state", ["open", "all"])
def test_the_inbox_fits_its_width(at_store: Run, columns: int, state: str) -> None:
    page = at_store("interrupts", "list", "--state", state, columns=columns).stdout

    assert max(cell_len(line) for line in page.splitlines()) <= columns


@pytest.mark.parametrize("name", ["approve", "text", "answered", "expired", "withdrawn"])
@pytest.mark.parametrize("columns", [80, 100])
def test_a_question_fits_its_width(at_store: Run, there: Asked, name: str, columns: int) -> None:
    page = at_store("interrupts", "show", getattr(there, name), columns=columns).stdout

    assert max(cell_len(line) for line in page.splitlines()) <= columns


def test_the_inbox_can_be_narrowed_and_paged(at_store: Run, there: Asked) -> None:
    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in listed(at_store, *arguments)]

    assert ids("--agent", "flagger") == [there.flag]
    assert ids("--thread-id", "two") == ids("--thread", "two") == list(there.two)
    assert ids("--run", there.order) == ids("--assignee", "alice") == ids("--tenant", "acme") == [there.approve]
    assert ids("--state", "answered") == [there.answered]
    assert ids("--state", "expired") == [there.expired]
    assert ids("--state", "withdrawn") == [there.withdrawn]
    assert ids("--limit", "2") == [there.approve, there.free]
    assert ids("--limit", "1", "--after", there.approve) == [there.free]
    assert {row["state"] for row in listed(at_store, "--state", "all")} == set(InterruptState)
    assert f"--after {there.free}" in at_store("interrupts", "list", "--limit", "2").stdout
    assert at_store("interrupts", "list", "--assignee", "alcie").stdout == (
        "no question for 'alcie' (did you mean alice?); there are: alice\n"
    )
    assert at_store("interrupts", "list", "--agent", "nobody").stdout.startswith(
        "no run of agent 'nobody'; there are: "
    )


def test_what_came_of_closed_questions_is_listed(at_store: Run) -> None:
    page = at_store("interrupts", "list", "--state", "all").stdout

    assert "bob: true" in page and "expired" in page and "withdrawn" in page


def test_a_question_as_json_has_the_fields_of_interrupt_info(at_store: Run, there: Asked) -> None:
    document = json.loads(at_store("interrupts", "show", there.approve, "--json").stdout)

    assert list(document) == list(InterruptInfo.__slots__)
    assert document["payload"] == {"buy": "lamp", "cents": 1900}
    assert document["schema"]["$ref"] == "#/$defs/Decision"
    assert document["created_at"].endswith("Z") and document["answered_at"] is None


def test_an_open_question_says_what_is_asked_what_an_answer_is_and_how_to_give_it(at_store: Run, there: Asked) -> None:
    page = at_store("interrupts", "show", there.approve, columns=200).stdout

    assert f"{there.order}, agent order" in page and "orders/7" in page
    assert "alice" in page and "it raises TimedOut in the agent" in page
    assert '{"buy": "lamp", "cents": 1900}' in page
    assert "an answer is an object with buy (true or false), perhaps with limit (a whole number; 0 if left out)" in page
    assert f"to answer: perdure resume {there.approve} '{{\"buy\": true}}'" in page
    assert '"Decision"' in page
    digest = json.loads(at_store("interrupts", "show", there.approve, "--json").stdout)["digest"]
    assert digest in page


@pytest.mark.parametrize("name", ["approve", "pick", "flag", "text"])
def test_the_command_that_is_shown_works_as_it_is_printed(at_store: Run, there: Asked, name: str) -> None:
    page = at_store("interrupts", "show", getattr(there, name), columns=300).stdout
    command = next(line for line in page.splitlines() if line.startswith("to answer: ")).removeprefix("to answer: ")

    result = at_store(*shlex.split(command)[1:])

    assert (result.exit_code, result.stderr) == (0, "")


def test_where_anything_will_do_the_command_says_so_and_is_refused_as_it_is(at_store: Run, there: Asked) -> None:
    page = at_store("interrupts", "show", there.free).stdout
    refused = at_store("resume", there.free, "ANSWER")

    assert "any JSON value, or a text" in page and f"perdure resume {there.free} ANSWER" in page
    assert refused.exit_code == 2 and "in place of ANSWER" in refused.stderr


def test_a_text_of_several_lines_is_shown_as_such(at_store: Run, there: Asked) -> None:
    assert "  Your name?\n  All of it.\n" in at_store("interrupts", "show", there.text).stdout


def test_a_closed_question_says_what_came_of_it(at_store: Run, there: Asked) -> None:
    answered = at_store("interrupts", "show", there.answered).stdout
    expired = at_store("interrupts", "show", there.expired).stdout
    withdrawn = at_store("interrupts", "show", there.withdrawn).stdout

    assert "✓ answered by bob at " in answered and answered.rstrip().endswith("true")
    assert "expired without an answer: its run is cancelled" in expired
    assert "withdrawn: the branch that asked was cancelled" in withdrawn
    assert "perdure resume" not in answered + expired + withdrawn
    assert "\nexpires" not in answered + expired + withdrawn and "\nexpired  " in expired


@pytest.mark.parametrize(("name", "code", "said"), [("i99999", 3, "interrupts list"), ("r1", 2, "i42")])
def test_what_is_no_question_is_an_error_with_its_remedy(at_store: Run, name: str, code: int, said: str) -> None:
    result = at_store("interrupts", "show", name)

    assert (result.exit_code, result.stdout) == (code, "") and said in result.stderr
