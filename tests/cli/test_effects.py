"""`perdure effects`, `perdure retry --undo`, and effects on the page of their run."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from perdure import App
from perdure.cli.exits import Exit
from perdure.cli.root import cli
from perdure.cli.verbs import shown_key
from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.core.codec import encode
from perdure.core.effects import EffectState
from perdure.core.errors import encode_error
from perdure.core.failures import cancellation
from perdure.core.keys import ask_place
from perdure.core.records import RunState, run_id
from perdure.testing.conformance.harness import Bench, Harness, end, fail, settle
from tests.cli.conftest import Run
from tests.runtime.desk import Desk
from tests.runtime.ledger import LOST, badly_undone, intended, unknown, waiting


class Ledger(msgspec.Struct):
    """What is in the store: effects, and their runs."""

    done: str = ""
    failed: str = ""
    unknown: str = ""
    lost: str = ""
    """Failed, and its effect is unknown."""
    asked: str = ""
    """Its run waits for the answer to `question`."""
    question: str = ""
    waits: str = ""
    left: str = ""
    """It could not be undone."""
    undone: str = ""
    """The run of that."""
    flying: str = ""
    """In flight."""
    stopped: str = ""
    """A run that was cancelled before it had done all."""


async def make(url: str) -> Ledger:
    made = Ledger()
    app = App("shop", store=url)
    async with app:
        desk = Desk(app, Bench(Harness(), (await app._client()).store))
        worker, claimed, made.done = await intended(desk, "one", tenant="acme")
        receipt = encode({"id": "ch_1", "why": "a rather long text that no column could ever hold"})
        await desk.bench.commit(worker, settle(claimed, int(made.done[1:]), outcome=receipt), end(claimed, receipt))
        worker, claimed, made.failed = await intended(desk, "two", name="mail", undoable=False)
        refused = settle(claimed, int(made.failed[1:]), EffectState.FAILED, outcome=encode_error(LOST))
        await desk.bench.commit(worker, refused, fail(claimed, encode_error(LOST)))
        claimed, made.unknown = await unknown(desk, "three")
        made.lost = run_id(claimed.run)
        claimed, made.asked, made.question = await waiting(desk, "four")
        made.waits = run_id(claimed.run)
        _, claimed, made.left = await badly_undone(desk, "five")
        made.undone = run_id(claimed.run)
        _, _, made.flying = await intended(desk, "six")
        worker, claimed = await desk.bench.begin("seven", payload=encode([[], {}]))
        stopped = cancellation("stop", not_done=["2/pay", "3/pay"])
        await desk.bench.commit(worker, end(claimed, stopped, outcome=RunState.CANCELLED))
        made.stopped = run_id(claimed.run)
    return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """A file with effects in every state, made once."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    return path, asyncio.run(make(f"sqlite:///{path}"))


@pytest.fixture
def ledger(first: tuple[Path, Ledger]) -> Ledger:
    return first[1]


@pytest.fixture
def at_ledger(first: tuple[Path, Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a copy of it, 100 columns wide."""
    path = tmp_path / "ledger.db"
    shutil.copy(first[0], path)

    def run(*arguments: str, columns: int = 100) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("PERDURE_STORE", f"sqlite:///{path}")
        return CliRunner().invoke(cli, arguments, prog_name="perdure")

    return run


def document(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def listed(at_ledger: Run, *arguments: str) -> list[str]:
    return [row["id"] for row in document(at_ledger("effects", "list", "--json", *arguments))]


# -- the list -------------------------------------------------------------------------------------------------------


def test_the_ledger_holds_the_effects_of_all_agents_oldest_first(at_ledger: Run, ledger: Ledger) -> None:
    rows = at_ledger("effects", "list").stdout.splitlines()

    assert rows[0].split() == ["id", "state", "effect", "agent", "run", "tries", "when", "outcome"]
    assert [row.split()[:2] for row in rows[1:]] == [
        [ledger.done, "done"], [ledger.failed, "failed"], [ledger.unknown, "unknown"], [ledger.asked, "unknown"],
        [ledger.left, "undo_failed"], [ledger.flying, "intended"],
    ]  # fmt: skip
    assert '{"id": "ch_1"' in rows[1] and "OutcomeUnknown: nobody knows" in rows[2]
    assert "no answer" in rows[3] and "the refund is refused" in rows[5]


def test_the_ledger_can_be_narrowed_and_paged(at_ledger: Run, ledger: Ledger) -> None:
    assert listed(at_ledger, "--state", "unknown") == [ledger.unknown, ledger.asked]
    assert listed(at_ledger, "--state", "undo_failed") == listed(at_ledger, "--run", ledger.undone) == [ledger.left]
    assert listed(at_ledger, "--thread", "three") == listed(at_ledger, "--thread-id", "three") == [ledger.unknown]
    assert listed(at_ledger, "--name", "mail") == listed(at_ledger, "--not-undoable") == [ledger.failed]
    assert listed(at_ledger, "--tenant", "acme") == [ledger.done]
    assert len(listed(at_ledger, "--agent", "agent", "--undoable")) == 5
    assert listed(at_ledger, "--limit", "1", "--after", ledger.done) == [ledger.failed]
    assert f"--after {ledger.failed}" in at_ledger("effects", "list", "--limit", "2").stdout
    assert at_ledger("effects", "list", "--state", "undone").stdout == "no undone effects\n"


def test_a_full_page_is_the_last_where_nothing_comes_after_it(at_ledger: Run) -> None:
    count = len(listed(at_ledger))

    assert "--after" not in at_ledger("effects", "list", "--limit", str(count)).stdout
    assert "more: --after" in at_ledger("effects", "list", "--limit", str(count - 1)).stdout


def test_a_list_that_is_empty_says_which_names_there_are(at_ledger: Run) -> None:
    for option, near, meant in (("agent", "agnet", "agent"), ("name", "mial", "mail"), ("tenant", "acne", "acme")):
        said = at_ledger("effects", "list", f"--{option}", near).stdout
        assert said.startswith("no effects of ") and f"(did you mean {meant}?); there are: " in said


@pytest.mark.parametrize("columns", [80, 100])
def test_the_pages_fit_their_width(at_ledger: Run, ledger: Ledger, columns: int) -> None:
    pages = [at_ledger("effects", "list", columns=columns).stdout]
    pages += [at_ledger("effects", "show", each, columns=columns).stdout for each in (ledger.done, ledger.left)]
    pages += [at_ledger("runs", "show", ledger.undone, columns=columns).stdout]

    assert max(cell_len(line) for page in pages for line in page.splitlines()) <= columns


# -- one ------------------------------------------------------------------------------------------------------------


def test_an_effect_as_json_has_the_fields_of_effect_info(at_ledger: Run, ledger: Ledger) -> None:
    shown = document(at_ledger("effects", "show", ledger.left, "--json"))

    assert list(shown) == list(EffectInfo.__slots__)
    assert list(shown["events"][0]) == list(EffectEventInfo.__slots__)
    assert (shown["state"], shown["arguments"]) == ("undo_failed", {"args": ["ann"], "kwargs": {"cents": 5}})
    assert [event["state"] for event in shown["events"]] == ["intended", "done", "undoing", "undo_failed"]
    assert shown["intended_at"].endswith("Z")


def test_a_page_shows_all_that_is_known_of_an_effect(at_ledger: Run, ledger: Ledger) -> None:
    page = at_ledger("effects", "show", ledger.left, columns=200).stdout

    assert page.startswith(f"{ledger.left}  pay  undo_failed\n")
    assert f"{ledger.undone}, agent agent" in page and "pd-1" in page and "fail: it raises OutcomeUnknown" in page
    assert '{"args": ["ann"], "kwargs": {"cents": 5}}' in page and '  "ch_1"' in page
    assert "note: the refund is refused" in page
    audit = page.partition("what was written of it\n")[2]
    assert re.findall(r" (intended|done|undoing|undo_failed) ", audit) == ["intended", "done", "undoing", "undo_failed"]
    assert f"`perdure retry {ledger.undone} --undo`" in page and f"resolve {ledger.left} --undone`" in page


def test_an_unknown_one_says_how_to_end_that_and_the_commands_work_as_printed(at_ledger: Run, ledger: Ledger) -> None:
    page = at_ledger("effects", "show", ledger.unknown, columns=300).stdout
    happened, absent = re.findall(r"`(perdure effects resolve [^`]*)`", page)

    assert happened == f"perdure effects resolve {ledger.unknown} --happened --result JSON"
    assert at_ledger(*shlex.split(absent)[1:]).exit_code == 0


def test_where_its_run_has_asked_the_page_names_the_question(at_ledger: Run, ledger: Ledger) -> None:
    assert f"answers question {ledger.question}" in at_ledger("effects", "show", ledger.asked, columns=300).stdout


def test_of_one_that_needs_nobody_nothing_is_to_do(at_ledger: Run, ledger: Ledger) -> None:
    for each in (ledger.done, ledger.failed, ledger.flying):
        assert "what to do" not in at_ledger("effects", "show", each).stdout


@pytest.mark.parametrize(("name", "code", "said"), [("e99999", 3, "effects list"), ("r1", 2, "e42")])
def test_what_is_no_effect_is_an_error_with_its_remedy(at_ledger: Run, name: str, code: int, said: str) -> None:
    for words in (("show", name), ("resolve", name, "--undone")):
        result = at_ledger("effects", *words)
        assert (result.exit_code, result.stdout) == (code, "") and said in result.stderr


# -- resolving ------------------------------------------------------------------------------------------------------


def test_what_happened_is_said_with_its_result_and_who_found_out(at_ledger: Run, ledger: Ledger) -> None:
    words = ("--happened", "--result", '{"id": "ch_2"}', "--by", "ann", "--note", "the dashboard")
    result = at_ledger("effects", "resolve", ledger.unknown, *words)

    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{ledger.unknown} (pay) is done by ann" in result.stdout
    assert f"`perdure retry {ledger.lost}` sends it on" in result.stdout
    shown = document(at_ledger("effects", "show", ledger.unknown, "--json"))
    assert (shown["state"], shown["result"], shown["by"]) == ("done", {"id": "ch_2"}, "ann")
    assert shown["note"] == shown["events"][-1]["note"] == "the dashboard"
    assert "ann" in at_ledger("effects", "show", ledger.unknown).stdout.partition("what was written")[2]


def test_the_same_again_exits_with_0_and_something_else_with_4(at_ledger: Run, ledger: Ledger) -> None:
    first = document(at_ledger("effects", "resolve", ledger.unknown, "--did-not-happen", "--by", "ann", "--json"))

    assert document(at_ledger("effects", "resolve", ledger.unknown, "--did-not-happen", "--json")) == first
    lost = at_ledger("effects", "resolve", ledger.unknown, "--happened")
    assert (lost.exit_code, lost.stdout) == (Exit.CONFLICT, "") and "is absent" in lost.stderr


def test_resolving_one_that_was_asked_about_answers_and_its_run_goes_on(at_ledger: Run, ledger: Ledger) -> None:
    result = at_ledger("effects", "resolve", ledger.asked, "--happened", "--result", "ch_3", "--by", "ann")

    assert (result.exit_code, result.stderr) == (0, "")
    assert f"by the answer to {ledger.question}; {ledger.waits} is queued" in result.stdout
    answered = document(at_ledger("interrupts", "show", ledger.question, "--json"))
    assert (answered["answer"], answered["answered_by"]) == ({"happened": True, "result": "ch_3"}, "ann")


def test_what_was_undone_by_hand_is_said(at_ledger: Run, ledger: Ledger) -> None:
    shown = document(at_ledger("effects", "resolve", ledger.left, "--undone", "--note", "by hand", "--json"))

    assert (shown["state"], shown["result"], shown["note"]) == ("undone", "ch_1", "by hand")
    assert listed(at_ledger, "--state", "undo_failed") == []


def test_one_in_flight_is_nobodys_to_resolve(at_ledger: Run, ledger: Ledger) -> None:
    result = at_ledger("effects", "resolve", ledger.flying, "--did-not-happen")

    assert result.exit_code == Exit.CONFLICT and "in flight" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--happened, --did-not-happen and --undone; none was given"),
        (("--happened", "--did-not-happen"), "--happened and --did-not-happen were given"),
        (("--did-not-happen", "--happened", "--result", "1"), "--happened and --did-not-happen were given"),
        (("--did-not-happen", "--undone"), "--did-not-happen and --undone were given"),
        (("--undone", "--result", "1"), "goes with --happened"),
        (("--happened", "--result", "{"), "not JSON"),
        (("--happened", "--note", ""), "note"),
    ],
)
def test_what_makes_no_sense_is_refused(at_ledger: Run, ledger: Ledger, words: tuple[str, ...], said: str) -> None:
    result = at_ledger("effects", "resolve", ledger.unknown, *words)

    assert result.exit_code == Exit.USAGE and said in result.stderr


# -- around it ------------------------------------------------------------------------------------------------------


def test_undos_are_tried_again_on_request_only(at_ledger: Run, ledger: Ledger) -> None:
    page = at_ledger("runs", "show", ledger.undone).stdout
    refused = at_ledger("retry", ledger.undone)
    result = at_ledger("retry", ledger.undone, "--undo")

    assert "1 of what it had done could not be undone" in page and "was undone" not in page
    assert refused.exit_code == Exit.CONFLICT and f"`perdure retry {ledger.undone} --undo`" in refused.stderr
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{ledger.undone} is queued again, to undo what is left" in result.stdout
    assert "its code is over" in at_ledger("runs", "show", ledger.undone).stdout


def test_a_runs_page_names_what_is_unknown_and_what_could_not_be_undone_in_a_line(
    at_ledger: Run, ledger: Ledger
) -> None:
    lost, left = at_ledger("runs", "show", ledger.lost), at_ledger("runs", "show", ledger.undone)

    assert f"unknown  pay  perdure effects show {ledger.unknown}: no answer\n" in lost.stdout
    assert f"undo_failed  pay  perdure effects show {ledger.left}: the refund is refused\n" in left.stdout
    assert f"perdure retry {ledger.undone} --undo" in left.stdout
    (shown,) = document(at_ledger("runs", "show", ledger.undone, "--json"))["effects"]
    assert (shown["id"], shown["state"]) == (ledger.left, "undo_failed")
    assert document(at_ledger("runs", "show", "r2", "--json"))["effects"] == []


def test_the_page_of_a_run_that_was_cancelled_lists_what_it_had_called_and_not_done(
    at_ledger: Run, ledger: Ledger
) -> None:
    page = at_ledger("runs", "show", ledger.stopped).stdout

    assert "cancelled: stop\nnot done: 2/pay, 3/pay\n" in page


def test_a_runs_timeline_shows_the_question_about_an_effect_beside_its_key(at_ledger: Run, ledger: Ledger) -> None:
    page = at_ledger("runs", "show", ledger.waits).stdout

    assert "◷ pay? " in page and f"waits for an answer to {ledger.question}" in page


def test_doctor_counts_them(at_ledger: Run) -> None:
    page = at_ledger("doctor", columns=200).stdout

    assert "2 unknown effects: `perdure effects list --state unknown`" in page
    assert "1 failed undo: `perdure effects list --state undo_failed`" in page


def test_a_question_that_was_asked_again_is_shown_beside_the_same_key() -> None:
    assert [shown_key(ask_place("2/pay", 1, again)) for again in (0, 1, 12)] == ["2/pay?"] * 3
