"""`perdure budgets`."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len

from perdure.cli.budget_questions import enough
from perdure.cli.exits import Exit
from perdure.client.budgets import BudgetInfo
from perdure.client.raising import check_raise
from perdure.errors import InvalidAnswer
from tests.cli.conftest import Run
from tests.cli.traded import Traded


def document(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def names(at_trade: Run, *arguments: str) -> list[str]:
    return [row["name"] for row in document(at_trade("budgets", "list", "--json", *arguments))]


def cells(page: str) -> list[list[str]]:
    """A table, cell by cell."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in page.splitlines()]


# -- looking --------------------------------------------------------------------------------------------------------


def test_the_list_has_a_line_for_each_limit(at_trade: Run, trade: Traded) -> None:
    assert cells(at_trade("budgets", "list").stdout) == [
        ["budget", "of", "limit", "spent", "in flight", "left"],
        ["agent:research", "steps", "3", "2", "1", "nothing"],
        ["agent:research", "seconds", "2 min 00 s", "1 min 50 s", "10.00 s"],
        [f"run:{trade.order}", "tokens", "100,000", "12,000", "88,000"],
        ["tenant:acme", "usd", "20", "17.500000001", "2.499999999"],
        ["tenant:acme", "tokens", "2,000,000", "12,000", "1,988,000"],
    ]


def test_budgets_can_be_narrowed_and_paged(at_trade: Run, trade: Traded) -> None:
    assert names(at_trade) == ["agent:research", f"run:{trade.order}", "tenant:acme"]
    assert names(at_trade, "tenant:") == ["tenant:acme"]
    assert names(at_trade, "--limit", "1", "--after", "agent:research") == [f"run:{trade.order}"]
    assert "more: --after agent:research" in at_trade("budgets", "list", "--limit", "1").stdout
    assert at_trade("budgets", "list", "tenant:acne").stdout == (
        "no budget that begins with 'tenant:acne' (did you mean tenant:acme?); there are: agent:research, "
        f"run:{trade.order}, tenant:acme\n"
    )


def test_a_budgets_page_shows_what_is_spent_of_everything(at_trade: Run) -> None:
    page = at_trade("budgets", "show", "tenant:acme").stdout

    assert page.startswith("tenant:acme\n") and ", by ann" in page
    assert ["steps", "no limit", "1"] in cells(page)
    assert "what used it: perdure usage --by agent --tenant acme\n" in page
    assert page.endswith("spent is also what tries had reserved when their worker died, which is in no meter\n")


def test_a_runs_budget_says_that_its_children_count_too(at_trade: Run, trade: Traded) -> None:
    page = at_trade("budgets", "show", f"run:{trade.order}").stdout

    assert f"what the run itself used: perdure usage --by run --run {trade.order}\n" in page
    assert f"what it has started: perdure runs list --parent {trade.order}\n" in page
    assert "what a run has started counts with it; spent is also" in page
    assert "perdure usage --by run --agent research\n" in at_trade("budgets", "show", "agent:research").stdout


def test_a_budget_for_somebody_who_is_not_known_is_kept_and_told(at_trade: Run) -> None:
    strange = at_trade("budgets", "set", "agent:reserch", "--usd", "3")
    tenant = at_trade("budgets", "set", "tenant:acne", "--usd", "3", "--json")
    known = at_trade("budgets", "set", "agent:research", "--usd", "3")

    assert (strange.exit_code, strange.stdout.partition("\n")[0]) == (0, "agent:reserch")
    assert strange.stderr.startswith("no run of agent 'reserch' (did you mean research?); there are: ")
    assert strange.stderr.endswith(". The budget is kept for when there is one\n")
    assert "did you mean acme?" in tenant.stderr and json.loads(tenant.stdout)["name"] == "tenant:acne"
    assert known.stderr == ""


def test_a_budget_as_json_has_the_fields_of_budget_info(at_trade: Run) -> None:
    shown = document(at_trade("budgets", "show", "agent:research", "--json"))

    assert list(shown) == list(BudgetInfo.__slots__)
    assert shown["limits"] == {"usd": None, "tokens": None, "steps": 3, "seconds": 120.0}
    assert shown["reserved"] == {"usd": 0.0, "tokens": 40, "steps": 1, "seconds": 0.0}


@pytest.mark.parametrize("columns", [80, 100])
def test_the_pages_fit_their_width(at_trade: Run, columns: int) -> None:
    pages = [at_trade("budgets", "list", columns=columns).stdout]
    pages += [at_trade("budgets", "show", "tenant:acme", columns=columns).stdout]

    assert max(cell_len(line) for page in pages for line in page.splitlines()) <= columns


# -- setting --------------------------------------------------------------------------------------------------------


def test_a_limit_that_is_not_given_stays_and_none_drops_one(at_trade: Run) -> None:
    raised = document(at_trade("budgets", "set", "tenant:acme", "--usd", "50.5", "--by", "bob", "--json"))
    dropped = document(at_trade("budgets", "set", "tenant:acme", "--tokens", "none", "--seconds", "2h", "--json"))

    assert (raised["limits"]["usd"], raised["limits"]["tokens"], raised["by"]) == (50.5, 2_000_000, "bob")
    assert dropped["limits"] == {"usd": 50.5, "tokens": None, "steps": None, "seconds": 7_200.0}
    assert (dropped["rev"], dropped["spent"]["usd"]) == (3, 17.500000001)


def test_the_last_limit_can_be_dropped(at_trade: Run, trade: Traded) -> None:
    dropped = document(at_trade("budgets", "set", f"run:{trade.order}", "--tokens", "none", "--json"))

    assert set(dropped["limits"].values()) == {None} and dropped["spent"]["tokens"] == 12_000
    assert [f"run:{trade.order}", "no limits"] in cells(at_trade("budgets", "list").stdout)
    assert ["tokens", "no limit", "12,000"] in cells(at_trade("budgets", "show", f"run:{trade.order}").stdout)


def test_a_limit_of_a_budget_that_is_not_there_cannot_be_dropped(at_trade: Run) -> None:
    result = at_trade("budgets", "set", "tenant:new", "--usd", "none")

    assert (result.exit_code, result.stdout) == (Exit.NOT_FOUND, "")
    assert "no budget 'tenant:new'" in result.stderr and "perdure budgets set tenant:new --usd 20" in result.stderr
    assert document(at_trade("budgets", "list", "tenant:new", "--json")) == []


def test_a_new_budget_is_made_and_shown(at_trade: Run) -> None:
    page = at_trade("budgets", "set", "agent:order", "--steps", "10", "--by", "ann").stdout

    assert page.startswith("agent:order\n") and ", by ann" in page
    assert ["steps", "10", "0", "10"] in cells(page)


def test_a_runs_own_budget_can_be_raised_but_not_be_made(at_trade: Run, trade: Traded) -> None:
    raised = document(at_trade("budgets", "set", f"run:{trade.order}", "--tokens", "200000", "--json"))
    result = at_trade("budgets", "set", f"run:{trade.research}", "--tokens", "5")

    assert raised["limits"]["tokens"] == 200_000
    assert (result.exit_code, result.stdout) == (Exit.NOT_FOUND, "") and "from its start on" in result.stderr


# -- asked for more -------------------------------------------------------------------------------------------------


def test_the_question_whether_a_budget_is_raised_comes_with_both_answers(at_trade: Run, trade: Traded) -> None:
    page = at_trade("interrupts", "show", trade.question).stdout
    raised, stop, look = re.findall(r"perdure (?:resume|budgets) .*", page)

    assert shlex.split(raised)[2:] == [trade.question, '{"raise_to": {"steps": 8}}']
    assert shlex.split(stop)[3] == '{"stop": true}' and look == "perdure budgets show agent:research"
    assert "schema" not in page
    assert at_trade(*shlex.split(raised)[1:], "--json").exit_code == 0


def test_a_question_about_a_budget_is_listed_by_what_is_short(at_trade: Run, trade: Traded) -> None:
    said = "look needs more steps: 3 of 3 spent (agent:research)"
    page = at_trade("runs", "show", trade.asking).stdout

    assert said[:-8] in at_trade("interrupts", "list").stdout
    assert f"{trade.question}: look needs more steps: 3 of 3" in at_trade("runs", "list").stdout
    assert "◷ budget agent:research? " in page and f"asked {trade.question}: {said}" in page
    assert f"waits for an answer to {trade.question} ({said})" in page


def test_what_was_answered_about_a_budget_is_told_in_words(at_trade: Run, trade: Traded) -> None:
    at_trade("resume", trade.question, '{"raise_to": {"steps": 9}}', "--by", "ann")

    assert "ann: raised it to 9 steps" in at_trade("interrupts", "list", "--state", "all", columns=160).stdout
    assert "ann raised it to 9 steps after " in at_trade("runs", "show", trade.asking).stdout


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"raise_to": {"steps": 2}}', "2 is not above the limit 3"),
        ('{"raise_to": {"steps": 3, "usd": 5}}', "3 is not above the limit 3; the budget has no limit of usd"),
        ('{"raise_to": {"stps": 9}}', "there is no field 'stps' (did you mean 'steps'?)"),
        ('{"raise_to": {}}', "$.raise_to"),
        ('{"raise": 9}', "there is no field 'raise'"),
        ("9", "9 is not of type"),
        ("yes", "ANSWER"),
        ("{}", "{}"),
    ],
)
def test_an_answer_that_does_not_help_is_refused_in_a_few_words(
    at_trade: Run, trade: Traded, answer: str, said: str
) -> None:
    result = at_trade("resume", trade.question, answer)

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert said in result.stderr and f"`perdure interrupts show {trade.question}`" in result.stderr
    assert len(result.stderr) < 260 and result.stderr.count("\n") == 1
    assert document(at_trade("interrupts", "show", trade.question, "--json"))["state"] == "open"


def test_without_an_answer_about_a_budget_the_two_are_named(at_trade: Run, trade: Traded) -> None:
    result = at_trade("resume", trade.question)

    assert result.exit_code == Exit.USAGE and f"`perdure interrupts show {trade.question}`" in result.stderr
    assert len(result.stderr) < 260


def test_setting_the_budget_withdraws_the_question_and_wakes_its_run(at_trade: Run, trade: Traded) -> None:
    at_trade("budgets", "set", "agent:research", "--steps", "9", "--by", "ann")

    assert document(at_trade("interrupts", "show", trade.question, "--json"))["state"] == "withdrawn"
    assert "\nwithdrawn: ann has set agent:research\n" in at_trade("interrupts", "show", trade.question).stdout
    assert "withdrawn: ann has set agent:research after " in at_trade("runs", "show", trade.asking).stdout
    assert document(at_trade("runs", "show", trade.asking, "--json"))["state"] == "queued"


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"limit": {"usd": 1.0}, "spent": {"usd": 0.8}, "wanted": {"usd": 0.5}}, {"usd": 2.6}),
        ({"limit": {"tokens": 10, "usd": 5.0}, "spent": {"tokens": 10, "usd": 1.0}, "wanted": {}}, {"tokens": 20}),
        ({"limit": {"usd": 0.0}, "spent": {"usd": 0.0}, "wanted": {}}, {"usd": 1}),
        ({"limit": {"steps": 0}, "spent": {"steps": 0}, "wanted": {"steps": 1}}, {"steps": 2}),
        ({}, {"usd": 1}),
        ({"limit": "none"}, {"usd": 1}),
    ],
)
def test_the_limits_that_are_proposed_are_enough_of_what_is_short(asked: Any, limits: dict[str, float]) -> None:
    assert enough(asked) == limits


SPENT = {"budget": "run:r2", "limit": {"usd": 0.8}, "spent": {"usd": 0.85}, "wanted": {}}
SHORT = {
    "budget": "run:r2",
    "limit": {"usd": 1.0, "tokens": 9},
    "spent": {"usd": 0.8, "tokens": 1},
    "wanted": {"usd": 0.4},
}


@pytest.mark.parametrize(
    ("asked", "answer", "said"),
    [
        (SPENT, {"usd": 0.5}, "0.5 is not above the limit 0.8"),
        (SPENT, {"usd": 0.8}, "0.8 is not above the limit 0.8"),
        (SPENT, {"usd": 0.85}, "0.85 leaves nothing: 0.85 usd is spent"),
        (SPENT, {"usd": 0.86}, None),
        (SPENT, {"tokens": 5}, "the budget has no limit of tokens, but of usd"),
        (SPENT, {"tokens": 5, "usd": 2}, None),
        (SHORT, {"usd": 1.1}, "1.1 is not enough: 0.8 usd is spent, and a try wants 0.4"),
        (SHORT, {"usd": 1.2}, None),
        (SHORT, {"tokens": 90}, "9 tokens is not what is short"),
        ({"budget": "run:r2"}, {"usd": 1}, None),
        ({"limit": {"usd": 1.0}, "spent": {"usd": 1.0}}, {"usd": 0.5}, None),
        ("an agent's own", {"usd": 0.5}, None),
    ],
)
def test_a_raise_that_leaves_the_step_as_short_as_it_was_is_refused(
    asked: Any, answer: dict[str, float], said: str | None
) -> None:
    if said is None:
        check_raise(asked, {"raise_to": answer})
    else:
        with pytest.raises(InvalidAnswer, match=rf"^{re.escape(said)}\. The question stays open\.$"):
            check_raise(asked, {"raise_to": answer})
    check_raise(asked, {"stop": True})


# -- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tenant:acme",), "--usd, --tokens, --steps or --seconds"),
        (("acme", "--usd", "1"), "tenant:acme, agent:order or run:r42"),
        (("tenant:acme", "--usd", "much"), "--usd 'much' is no number"),
        (("tenant:acme", "--tokens", "1.5"), "--tokens '1.5' is no whole number"),
        (("tenant:acme", "--seconds", "long"), "--seconds 'long' is no time; give seconds, or 90s, 2h, 1h30m"),
        (("tenant:acme", "--usd", "nan"), "--usd 'nan' is no limit"),
        (("tenant:acme", "--usd", "-1"), "from 0"),
    ],
)
def test_what_makes_no_sense_is_refused(at_trade: Run, words: tuple[str, ...], said: str) -> None:
    result = at_trade("budgets", "set", *words)

    assert result.exit_code == Exit.USAGE and said in result.stderr


def test_a_budget_that_is_not_there_is_an_error_with_its_remedy(at_trade: Run) -> None:
    result = at_trade("budgets", "show", "tenant:acm")

    assert (result.exit_code, result.stdout) == (Exit.NOT_FOUND, "") and "perdure budgets list" in result.stderr
