"""`perdure cancel`: the truth about who won."""

from __future__ import annotations

import json
from typing import Any

from perdure.cli.exits import Exit
from tests.cli.asked import Asked
from tests.cli.conftest import Run


def run(at_store: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(at_store("runs", "show", name, "--json").stdout)
    return found


def test_a_run_that_has_begun_will_end_as_cancelled(at_store: Run, there: Asked) -> None:
    result = at_store("cancel", there.order, "--reason", "too dear")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{there.order} will end as cancelled, when its code has cleaned up")
    assert (run(at_store, there.order)["state"], run(at_store, there.order)["cancel"]) == ("queued", "too dear")
    page = at_store("runs", "show", there.order).stdout
    assert "it will be, when its code has cleaned up; why: too dear" in page
    assert "to be cancelled: too dear" in at_store("runs", "list").stdout


def test_a_run_that_nobody_has_begun_is_cancelled_at_once_and_so_are_children(at_store: Run, there: Asked) -> None:
    result = at_store("cancel", there.boss)

    assert f"1 run that it has started is cancelled with it: {there.worker}" in result.stdout
    assert run(at_store, there.worker)["state"] == "cancelled"
    assert at_store("cancel", there.worker).stdout == f"{there.worker} was cancelled before: asked for\n"


def test_the_first_reason_stays_and_the_second_who_asks_is_told(at_store: Run, there: Asked) -> None:
    at_store("cancel", there.order, "--reason", "too dear")

    again = at_store("cancel", there.order, "--reason", "too late")

    assert again.exit_code == 0 and "(that was requested before: too dear)" in again.stdout


def test_a_run_that_had_ended_otherwise_is_not_cancelled_and_that_is_a_conflict(at_store: Run, there: Asked) -> None:
    plain = at_store("cancel", there.child)
    document = at_store("cancel", there.child, "--json")

    assert (plain.exit_code, plain.stdout) == (Exit.CONFLICT, "")
    assert f"{there.child} had completed before, so nothing was cancelled" in plain.stderr
    assert document.exit_code == Exit.CONFLICT and json.loads(document.stdout)["state"] == "completed"


def test_a_cancelled_run_shows_why_and_what_it_had_asked(at_store: Run, there: Asked) -> None:
    page = at_store("runs", "show", there.gone).stdout

    assert "✗ cancelled: changed my mind" in page and f"perdure retry {there.gone}" in page
    assert f'asked {there.withdrawn}: "Still there?"' in page
    assert "withdrawn: nobody waits for an answer any more" in page


def test_what_is_no_run_is_an_error_with_its_remedy(at_store: Run) -> None:
    missing, wrong = at_store("cancel", "r99999"), at_store("cancel", "seven")

    assert missing.exit_code == Exit.NOT_FOUND and "perdure runs list" in missing.stderr
    assert wrong.exit_code == Exit.USAGE and "look like r12" in wrong.stderr
