"""`perdure resume`: who won, and why an answer is refused."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.exits import Exit
from tests.cli.asked import Asked
from tests.cli.conftest import Run


def question(at_store: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(at_store("interrupts", "show", name, "--json").stdout)
    return found


def test_an_answer_wins_and_its_run_goes_on(at_store: Run, there: Asked) -> None:
    result = at_store("resume", there.approve, '{"buy": true}', "--by", "alice")

    assert (result.exit_code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == f'{there.approve} is answered by alice: {{"buy": true}}'
    assert second.startswith(f"{there.order} (agent order, thread orders/7) is queued")
    assert (question(at_store, there.approve)["state"], question(at_store, there.approve)["answered_by"]) == (
        "answered",
        "alice",
    )


def test_who_answers_is_who_is_logged_in_unless_he_says_otherwise(
    at_store: Run, there: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "carol")

    at_store("resume", there.flag, "true")

    assert question(at_store, there.flag)["answered_by"] == "carol"


def test_where_nobody_is_logged_in_the_answer_is_nobodys(
    at_store: Run, there: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nobody)

    result = at_store("resume", there.flag, "true")

    assert result.stdout.startswith(f"{there.flag} is answered: true\n")


def test_a_thread_stands_for_its_only_open_question(at_store: Run, there: Asked) -> None:
    assert at_store("resume", "flag", "false").exit_code == 0
    again, two = at_store("resume", "flag", "false"), at_store("resume", "two", "1")

    assert question(at_store, there.flag)["answer"] is False
    assert again.exit_code == Exit.CONFLICT and "no open question" in again.stderr
    assert "a run that this one has started may have asked it (`perdure interrupts list`)" in again.stderr
    assert two.exit_code == Exit.CONFLICT and all(name in two.stderr for name in there.two)


def test_another_answer_is_told_which_one_stands_and_exits_as_a_conflict(at_store: Run, there: Asked) -> None:
    at_store("resume", there.flag, "true", "--by", "alice")

    lost = at_store("resume", there.flag, "false", "--by", "bob")
    document = at_store("resume", there.flag, "false", "--by", "bob", "--json")
    same = at_store("resume", there.flag, "true", "--by", "bob")

    assert (lost.exit_code, lost.stdout) == (Exit.CONFLICT, "")
    assert "was answered by alice" in lost.stderr and "that answer stands" in lost.stderr
    assert document.exit_code == Exit.CONFLICT
    assert (json.loads(document.stdout)["answered_by"], json.loads(document.stdout)["answer"]) == ("alice", True)
    assert same.exit_code == 0 and f"{there.flag} had this answer already by alice: true" in same.stdout


@pytest.mark.parametrize(("name", "said"), [("expired", "has expired"), ("withdrawn", "was withdrawn")])
def test_a_closed_question_takes_no_answer(at_store: Run, there: Asked, name: str, said: str) -> None:
    result = at_store("resume", getattr(there, name), "true")

    assert (result.exit_code, result.stdout) == (Exit.CONFLICT, "") and said in result.stderr


def test_an_answer_to_a_run_that_will_be_cancelled_says_that_it_changes_nothing(at_store: Run, there: Asked) -> None:
    at_store("cancel", there.order, "--reason", "too dear")

    listed, shown = at_store("interrupts", "list"), at_store("interrupts", "show", there.approve)
    result = at_store("resume", there.approve, '{"buy": true}')

    assert "run to be" in listed.stdout and "whatever the answer is; why: too dear" in shown.stdout
    assert question(at_store, there.approve)["run_cancel"] == "too dear"
    assert result.exit_code == 0
    assert "will end as cancelled all the same: that was asked for before (too dear)" in result.stdout


def test_a_misspelt_field_is_refused_and_the_nearest_is_named(at_store: Run, there: Asked) -> None:
    result = at_store("resume", there.approve, '{"buy": true, "limt": 3}')

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert "there is no field 'limt' (did you mean 'limit'?)" in result.stderr
    assert question(at_store, there.approve)["state"] == "open"


# -- what an answer may look like ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("text", "Ada", "Ada"),
        ("text", '"Ada"', "Ada"),
        ("text", "it's Ada, of course", "it's Ada, of course"),
        ("pick", "yes", "yes"),
        ("free", "yes", "yes"),
        ("free", "[1, 2.5, null]", [1, 2.5, None]),
        ("free", "NaN", "NaN"),
        ("free", "null", None),
        ("flag", " true ", True),
    ],
)
def test_an_answer_is_json_or_a_word_where_a_text_will_do(
    at_store: Run, there: Asked, name: str, given: str, taken: Any
) -> None:
    result = at_store("resume", getattr(there, name), given)

    assert (result.exit_code, result.stderr) == (0, "")
    found = question(at_store, getattr(there, name))
    assert (found["state"], found["answer"]) == ("answered", taken)
    assert result.stdout.splitlines()[0].endswith("(a text)") is (given == taken)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("flag", "yes", "Did you mean true: `perdure resume {} true`?"),
        ("flag", "No", "Did you mean false: `perdure resume {} false`?"),
        ("flag", "maybe", "An answer is true or false: `perdure resume {} true`"),
        ("flag", '"yes"', "An answer is true or false"),
        ("pick", "maybe", 'An answer is "no" or "yes": `perdure resume {} no`'),
        ("text", "5", "If a text is meant, quote it: '\"5\"'."),
        ("approve", '{"buy": 1}', "$.buy"),
        ("approve", '{"buy": 1', "ANSWER is not JSON"),
        ("free", '["a"', "ANSWER is not JSON"),
        ("free", '"a', "ANSWER is not JSON"),
        ("free", "", "ANSWER is not JSON"),
        ("flag", "ANSWER", "in place of ANSWER"),
    ],
)
def test_what_is_no_answer_is_refused_with_a_hint_and_the_question_stays(
    at_store: Run, there: Asked, name: str, given: str, said: str
) -> None:
    asked = getattr(there, name)

    result = at_store("resume", asked, given)

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert said.format(asked) in result.stderr and result.stderr.count("\n") == 1
    assert question(at_store, asked)["state"] == "open"


def test_without_an_answer_the_way_to_give_one_is_shown(at_store: Run, there: Asked) -> None:
    result = at_store("resume", there.flag)

    assert result.exit_code == Exit.USAGE and f"`perdure resume {there.flag} true`" in result.stderr


def test_an_answer_may_come_from_stdin_or_a_file(at_store: Run, there: Asked, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text('{"buy": false, "limit": 3}\n', encoding="utf-8")

    assert at_store("resume", there.approve, "--file", str(path)).exit_code == 0
    assert at_store("resume", there.flag, "-", said="true\n").exit_code == 0
    assert at_store("resume", there.text, "--file", "-", said="Ada\nLovelace\n").exit_code == 0
    assert question(at_store, there.approve)["answer"] == {"buy": False, "limit": 3}
    assert question(at_store, there.flag)["answer"] is True
    assert question(at_store, there.text)["answer"] == "Ada\nLovelace"


def test_a_file_that_cannot_be_read_is_a_usage_error(at_store: Run, there: Asked, tmp_path: Path) -> None:
    missing = at_store("resume", there.flag, "--file", str(tmp_path / "none"))
    both = at_store("resume", there.flag, "true", "--file", "-")
    torn = at_store("resume", there.flag, "-", said=b"\xff")

    assert [each.exit_code for each in (missing, both, torn)] == [Exit.USAGE] * 3
    assert "No such file" in missing.stderr and "both are given" in both.stderr and "UTF-8" in torn.stderr


def test_who_approves_can_say_what_he_has_seen(at_store: Run, there: Asked) -> None:
    digest = question(at_store, there.flag)["digest"]

    other = at_store("resume", there.flag, "true", "--digest", "0" * 40)
    same = at_store("resume", there.flag, "true", "--digest", digest)

    assert other.exit_code == Exit.CONFLICT and "not about what you have seen" in other.stderr
    assert same.exit_code == 0


@pytest.mark.parametrize("name", ["i99999", "nowhere"])
def test_a_question_that_is_not_there_is_not_found(at_store: Run, name: str) -> None:
    result = at_store("resume", name, "true")

    assert result.exit_code == Exit.NOT_FOUND and "perdure interrupts list" in result.stderr
