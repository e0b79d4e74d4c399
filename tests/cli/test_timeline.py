"""What happened to a run, from its log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.cli import budget_words
from perdure.cli.awaiting import Around
from perdure.cli.reading import RunLog
from perdure.cli.timeline import Forked, Handover, Parked, Timeline, Try, timeline
from perdure.cli.timeline_words import span
from perdure.cli.verbs import Verb, for_budget, name_of, shown_key, try_before, verb_of
from perdure.core.budgets import Amounts, BudgetRow, Limits
from perdure.core.keys import ask_place, budget_place, place_beside, retry_place
from perdure.core.records import Checkpoint, Interrupt, InterruptState, Kind, RunState, Wait, WaitKind
from tests.cli.rows import NOW, SECOND, attempt, question, run, step, wait


def test_steps_stand_in_the_order_they_were_recorded() -> None:
    made = timeline(run(), [step("b", seq=1), step("a", seq=0), step("c", super_step=2)], [])

    assert [super_step.number for super_step in made.super_steps] == [1, 2]
    assert [step.key for step in made.super_steps[0].lines if isinstance(step, Checkpoint)] == ["a", "b"]


def test_failed_tries_stand_before_the_record_of_their_step() -> None:
    made = timeline(run(), [step("a", attempt=3)], [attempt("a", attempt=2), attempt("a", attempt=1)])

    first, second, record = made.super_steps[0].lines

    assert isinstance(first, Try) and first.row.attempt == 1
    assert isinstance(second, Try) and second.row.attempt == 2
    assert record == step("a", attempt=3)


def test_a_take_over_stands_where_the_claim_changed() -> None:
    log = [step("a", fence=1, worker=5), step("b", fence=3, worker=6), step("c", fence=3, worker=6, super_step=2)]

    made = timeline(run(), log, [])

    assert [line for super_step in made.super_steps for line in super_step.lines if isinstance(line, Handover)] == [
        Handover(from_worker=5, from_fence=1, to_worker=6, to_fence=3)
    ]


def test_what_the_dead_claim_left_behind_stands_before_the_take_over() -> None:
    log = [step("a", fence=1, worker=5), step("b", fence=3, worker=6, attempt=3)]
    tries = [attempt("b", fence=1, attempt=1), attempt("b", fence=3, attempt=2)]

    first, left, handover, again, last = timeline(run(), log, tries).super_steps[0].lines

    assert first == log[0] and last == log[1] and isinstance(handover, Handover)
    assert isinstance(left, Try) and left.row == tries[0]
    assert isinstance(again, Try) and again.row == tries[1]


def test_the_note_of_a_try_that_became_the_record_is_not_shown_twice() -> None:
    made = timeline(run(), [step("a", attempt=2)], [attempt("a", attempt=2, error=None, ended_at=None)])

    assert made.super_steps[0].lines == (step("a", attempt=2),)


def test_a_try_is_open_only_under_the_claim_that_holds_the_run_now() -> None:
    running = run(state=RunState.RUNNING, fence=3)
    tries = [
        attempt("now", fence=3, error=None, ended_at=None),
        attempt("before", fence=1, error=None, ended_at=None),
    ]

    lines = timeline(running, [], tries).super_steps[0].lines

    assert {line.row.key: line.open for line in lines if isinstance(line, Try)} == {"now": True, "before": False}


def test_the_end_is_no_super_step() -> None:
    log = [step("", kind=Kind.BOUNDARY), step("a"), step("", kind=Kind.ENDED, super_step=2)]

    made = timeline(run(state=RunState.COMPLETED), log, [])

    assert [super_step.number for super_step in made.super_steps] == [1]
    assert made.ended is not None and made.ended.super_step == 2


def test_a_run_without_a_log_has_an_empty_timeline() -> None:
    assert timeline(run(), [], []).super_steps == ()


# -- time in nobody's hands ------------------------------------------------------------------------------------------

NIL = b"\xc0"


def slept(key: str = "sleep", *, until: int, **changes: object) -> Checkpoint:
    """The record of a sleep, made by the claim that came after it."""
    return step(key, digest=0, payload=NIL, started_at=until, ended_at=until, **changes)


def test_a_run_that_was_parked_shows_for_how_long_and_who_went_on() -> None:
    log = [step("a", fence=1), slept(until=NOW + 61 * SECOND, fence=2, worker=6)]

    first, parked, woken = timeline(run(), log, []).super_steps[0].lines

    assert (first, woken) == tuple(log)
    assert parked == Parked(from_at=NOW + SECOND, until_at=NOW + 61 * SECOND, worker=6)


def test_the_first_thing_that_a_run_does_may_be_to_wait() -> None:
    subject = run(started_at=NOW)

    parked, _ = timeline(subject, [slept(until=NOW + 60 * SECOND, fence=2)], []).super_steps[0].lines

    assert parked == Parked(NOW, NOW + 60 * SECOND, 5)


def test_a_take_over_in_the_middle_of_a_wait_is_no_parking() -> None:
    log = [step("a", fence=1), slept(until=NOW + 9 * SECOND, fence=3, worker=6)]

    _, between, _ = timeline(run(), log, []).super_steps[0].lines

    assert isinstance(between, Handover)


def test_a_step_that_follows_at_once_in_another_claim_is_a_handover() -> None:
    _, between, _ = timeline(run(), [step("a", fence=1), step("b", fence=2)], []).super_steps[0].lines

    assert isinstance(between, Handover)


def test_a_long_pause_before_another_try_is_a_parking_too() -> None:
    tried = attempt("a", fence=1, ended_at=NOW + SECOND)
    again = step("a", fence=2, attempt=2, started_at=NOW + 8 * SECOND, ended_at=NOW + 9 * SECOND)

    failed, parked, record = timeline(run(), [again], [tried]).super_steps[0].lines

    assert isinstance(failed, Try) and record == again
    assert parked == Parked(NOW + SECOND, NOW + 8 * SECOND, 5)


def test_a_question_is_what_was_waited_for_whatever_its_key() -> None:
    log = [step("approve", fence=2, started_at=NOW + 9 * SECOND, ended_at=NOW + 9 * SECOND)]

    lines = timeline(run(started_at=NOW), log, [], questions=[question("approve")]).super_steps[0].lines

    assert lines == (Parked(NOW, NOW + 9 * SECOND, 5), log[0])


def test_what_is_waited_for_now_stands_at_the_end_with_the_time_since_then() -> None:
    parked = run(state=RunState.WAITING, started_at=NOW)
    open_now = wait("receive", opened_at=NOW + 3 * SECOND)

    lines = timeline(parked, [step("a", fence=1)], [], waits=[open_now]).super_steps[0].lines

    assert lines[1:] == (open_now, Parked(NOW + 3 * SECOND, None, None))


def test_a_run_that_is_executed_may_wait_in_one_branch_and_is_not_parked() -> None:
    running = run(state=RunState.RUNNING, started_at=NOW)

    lines = timeline(running, [], [], waits=[wait("receive")]).super_steps[0].lines

    assert lines == (wait("receive"),)


def test_a_run_that_was_cancelled_while_it_waited_shows_what_it_had_asked_and_that_it_was_parked() -> None:
    subject = run(state=RunState.CANCELLED, cancel="enough", started_at=NOW)
    asked = question("approve", created_at=NOW + SECOND)
    ended = step("", kind=Kind.ENDED, super_step=2, fence=2, ended_at=NOW + 60 * SECOND)
    log = [step("", kind=Kind.BOUNDARY, fence=0), ended]

    lines = timeline(subject, log, [], questions=[asked]).super_steps[0].lines

    assert lines == (asked, Parked(NOW + SECOND, NOW + 60 * SECOND, 5))


def test_what_a_cancelled_run_does_to_clean_up_comes_after_the_parking() -> None:
    subject = run(state=RunState.CANCELLED, cancel="enough", started_at=NOW)
    cleaned = step("tidy", fence=2, started_at=NOW + 60 * SECOND, ended_at=NOW + 61 * SECOND)

    lines = timeline(subject, [cleaned], [], questions=[question("approve")]).super_steps[0].lines

    assert [type(line) for line in lines] == [Interrupt, Parked, Checkpoint]


def test_what_a_fork_has_taken_over_stands_first_and_moves_no_fence() -> None:
    old = NOW - 1_000 * SECOND
    taken = [step(key, seq=seq, fence=seq + 4, worker=9, started_at=old, ended_at=old) for seq, key in enumerate("ab")]
    own = step("c", seq=2, fence=1)

    lines = timeline(run(started_at=NOW), [*taken, own], []).super_steps[0].lines

    assert lines == (*taken, Forked(2, 1), own)


def test_a_fork_by_the_worker_that_made_the_records_shows_where_clocks_are_one() -> None:
    just_now = NOW - SECOND
    taken = step("a", started_at=just_now, ended_at=just_now)
    own = step("b", seq=1, started_at=NOW + 1, ended_at=NOW + 2)
    forked = run(created_at=NOW, started_at=NOW, attempt=1, fence=1, state=RunState.RUNNING, worker=5)

    assert timeline(forked, [taken, own], [], clocks_us=0).super_steps[0].lines == (taken, Forked(1, 1), own)


def test_a_fork_that_has_taken_over_nothing_shows_by_the_super_steps_that_it_does_not_have() -> None:
    log = [step("", kind=Kind.BOUNDARY, super_step=3), step("a", super_step=3), step("b", super_step=4)]

    third, fourth = timeline(run(), log, []).super_steps

    assert third.lines == (Forked(0, 3), log[1]) and fourth.lines == (log[2],)


def test_waits_that_came_together_show_no_time_of_their_own_but_the_first() -> None:
    end = NOW + 61 * SECOND
    waits = [slept(f"{n}/sleep", until=end, fence=2, worker=6, seq=n) for n in (1, 2, 3)]
    line = timeline(run(), [step("a", fence=1), *waits], [])
    log = RunLog(line, {}, end, {}, {}, {}, {}, Around())

    first, *others = [span(row, log, parked_at=NOW if row is waits[0] else None, woken=True) for row in waits]

    assert first.took == 61 * SECOND and [each.with_above for each in others] == [True, True]


# -- parked because a budget was spent, of which no record is left ---------------------------------------------------


def about_budget(number: int, at: int, rev: int = 1, budget: int = 7, **changes: Any) -> Interrupt:
    """A question about budget 7, asked so many seconds after the run began: `book` was short of it."""
    payload = msgspec.msgpack.encode(
        {"budget": "run:r2", "step": "book", "limit": {"usd": 0.8}, "spent": {"usd": 0.85}, "wanted": {}}
    )  # fmt: skip
    fields = {"id": number, "name": "budget", "payload": payload, "created_at": NOW + at * SECOND}
    return question(budget_place(budget, rev), **{**fields, **changes})


def answered(number: int, at: int, after: int, **changes: Any) -> Interrupt:
    return about_budget(
        number, at, state=InterruptState.ANSWERED, answered_by="ann", answered_at=NOW + (at + after) * SECOND, **changes
    )  # fmt: skip


def booked(fence: int, at: int, key: str = "book") -> Checkpoint:
    return step(key, seq=at, fence=fence, started_at=NOW + at * SECOND, ended_at=NOW + (at + 1) * SECOND)


def set_budget(rev: int, at: int, by: str | None = "ann") -> BudgetRow:
    none = Amounts()
    return BudgetRow(7, "run:r2", Limits(usd=5), none, none, rev, NOW, NOW + at * SECOND, by)


def parked_in(made: Timeline) -> list[tuple[int, int | None]]:
    """From when to when, in seconds."""
    lines = [line for each in made.super_steps for line in each.lines if isinstance(line, Parked)]
    return [((row.from_at - NOW) // SECOND, row.until_at and (row.until_at - NOW) // SECOND) for row in lines]


def test_a_run_that_waited_for_its_budget_shows_for_how_long() -> None:
    log = [booked(1, 0, "plan"), booked(2, 61)]
    asked = answered(1, 2, 58)

    made = timeline(run(), log, [], questions=[asked])

    assert made.super_steps[0].lines == (
        log[0], asked, Parked(NOW + 2 * SECOND, NOW + 61 * SECOND, 5, for_budget=True), log[1],
    )  # fmt: skip
    assert not made.unsure


def test_a_question_that_was_withdrawn_because_the_budget_was_set_is_a_parking_too() -> None:
    withdrawn = about_budget(1, 2, state=InterruptState.WITHDRAWN)
    log = [booked(1, 0, "plan"), booked(2, 61)]

    made = timeline(run(), log, [], questions=[withdrawn], budgets={7: set_budget(2, 60)})

    assert parked_in(made) == [(2, 61)]


def test_a_question_after_another_shows_a_parking_for_each() -> None:
    log = [booked(1, 0, "plan"), booked(3, 91)]

    made = timeline(run(), log, [], questions=[answered(1, 2, 30), answered(2, 33, 57, rev=2)])

    assert parked_in(made) == [(2, 33), (33, 91)]


def test_a_try_that_failed_says_when_the_claim_after_the_parking_began() -> None:
    log = [msgspec.structs.replace(booked(2, 80), attempt=2)]
    tries = [attempt("book", fence=2, started_at=NOW + 61 * SECOND, ended_at=NOW + 62 * SECOND)]

    assert parked_in(timeline(run(), log, tries, questions=[answered(1, 2, 58)])) == [(2, 61)]


def test_a_question_that_was_answered_while_the_run_was_executed_is_no_parking() -> None:
    """Another branch went on, and the step that had asked too; then the run was given back."""
    went_on = [booked(1, 0, "plan"), booked(1, 30), booked(2, 61, "tidy")]
    other_branch = [booked(1, 40, "plan"), booked(2, 61)]

    for log in (went_on, other_branch):
        made = timeline(run(), log, [], questions=[answered(1, 2, 8)])
        assert parked_in(made) == [] and not made.unsure


def test_a_death_beside_a_question_about_a_budget_is_a_take_over_and_nothing_untrue_is_said_of_parking() -> None:
    log = [booked(1, 0, "plan"), booked(4, 91)]

    made = timeline(run(), log, [], questions=[answered(1, 2, 30)])

    assert [type(line) for line in made.super_steps[0].lines] == [Checkpoint, Interrupt, Handover, Checkpoint]
    assert made.unsure


def test_a_run_that_asks_again_at_once_shows_the_parking_before() -> None:
    first, second = answered(1, 2, 30), about_budget(2, 33, 2)
    waiting = run(state=RunState.WAITING, fence=2, started_at=NOW)
    open_now = wait(second.key, WaitKind.ANSWER, target=2, opened_at=NOW + 33 * SECOND)

    made = timeline(waiting, [booked(1, 0, "plan")], [], waits=[open_now], questions=[first, second])

    assert parked_in(made) == [(2, 33), (33, None)]
    assert [type(line) for line in made.super_steps[0].lines] == [Checkpoint, Interrupt, Parked, Wait, Parked]


def test_a_run_that_goes_on_after_an_answer_shows_the_parking_until_then() -> None:
    running = run(state=RunState.RUNNING, fence=2, worker=6, started_at=NOW)

    def shown(asked: Interrupt) -> Timeline:
        return timeline(running, [booked(1, 0, "plan")], [], questions=[asked])

    assert parked_in(shown(answered(1, 2, 30))) == [(2, 32)]
    withdrawn = shown(about_budget(1, 2, state=InterruptState.WITHDRAWN))
    assert parked_in(withdrawn) == [] and withdrawn.unsure


def test_a_run_that_was_cancelled_while_it_waited_for_its_budget_shows_the_parking_until_its_end() -> None:
    """Somebody set the budget afterwards, which has nothing to do with it."""
    cancelled = run(state=RunState.CANCELLED, cancel="enough", fence=2, started_at=NOW)
    ended = step("", kind=Kind.ENDED, super_step=2, fence=2, ended_at=NOW + 60 * SECOND)
    log = [step("", kind=Kind.BOUNDARY, fence=0), booked(1, 0, "plan"), ended]

    made = timeline(
        cancelled, log, [], questions=[about_budget(1, 2, state=InterruptState.WITHDRAWN)],
        budgets={7: set_budget(2, 300)},
    )  # fmt: skip

    assert parked_in(made) == [(2, 60)] and not made.unsure


def test_two_questions_at_once_are_one_parking_until_the_first_is_answered() -> None:
    """The other one stays open meanwhile, and is the next parking."""
    other = answered(2, 3, 88, budget=8, payload=msgspec.msgpack.encode({"budget": "agent:a", "step": "pay"}))
    log = [booked(1, 0, "plan"), booked(2, 61), booked(3, 95, "pay")]

    assert parked_in(timeline(run(), log, [], questions=[answered(1, 2, 58), other])) == [(3, 61), (62, 95)]


# -- what a question about a budget says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "book needs more usd: 0.85 of 0.8 spent (run:r2)"),
        (
            {"limit": {"usd": 1.0}, "spent": {"usd": 0.8}, "wanted": {"usd": 0.4}},
            "book needs 0.4 usd: 0.8 of 1 spent (run:r2)",
        ),
        (
            {"limit": {"usd": 1, "tokens": 9_000}, "spent": {"usd": 0, "tokens": 9_000}},
            "book needs more tokens: 9,000 of 9,000 spent (run:r2)",
        ),
        (
            {"limit": {"usd": 1, "steps": 2}, "spent": {"usd": 1, "steps": 2}},
            "book needs more usd and steps: 1 of 1 and 2 of 2 spent (run:r2)",
        ),
        ({"step": "1/pay~3?"}, "1/pay? needs more usd: 0.85 of 0.8 spent (run:r2)"),
        ({"limit": "much"}, None),
        ({"budget": None, "limit": {}}, None),
    ],
)
def test_a_question_about_a_budget_says_who_needs_what(asked: dict[str, Any], said: str | None) -> None:
    payload = {"budget": "run:r2", "step": "book", "limit": {"usd": 0.8}, "spent": {"usd": 0.85}, "wanted": {}}

    assert budget_words.need(payload | asked) == said


@pytest.mark.parametrize(
    ("rev", "by", "said"),
    [(1, "ann", None), (2, "ann", "ann has set run:r2"), (2, None, "run:r2 was set"), (3, "bob", "run:r2 was set")],
)
def test_who_has_set_a_budget_is_told_where_its_row_says_so(rev: int, by: str | None, said: str | None) -> None:
    withdrawn = about_budget(1, 2, state=InterruptState.WITHDRAWN)

    assert budget_words.setting(withdrawn, {7: set_budget(rev, 60, by)}) == said
    assert budget_words.setting(about_budget(1, 2), {7: set_budget(rev, 60, by)}) is None
    assert budget_words.closed_at(withdrawn, {7: set_budget(rev, 60, by)}) == (NOW + 60 * SECOND if rev == 2 else None)


# -- whose record it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "payload", "digest", "verb"),
    [
        ("search", NIL, 7, Verb.STEP),
        ("2/1/sleep#3", NIL, 0, Verb.TIMER),
        ("sleep_until", NIL, 0, Verb.TIMER),
        ("sleep", NIL, 7, Verb.STEP),
        ("sleep", b"\x01", 0, Verb.STEP),
        ("=sleep", NIL, 0, Verb.STEP),
        ("timeout#2", b"\xc3", 0, Verb.LIMIT),
        ("receive", b"\x01", 0, Verb.RECEIVE),
        ("1/start:child", msgspec.msgpack.encode([42, "thread"]), 7, Verb.START),
        ("start:child", b"\x01", 7, Verb.STEP),
        ("result:child#2", b"\x01", 7, Verb.RESULT),
        ("now", b"\x01", 0, Verb.STEP),
    ],
)
def test_a_verb_is_known_by_its_key_and_by_what_it_records(key: str, payload: bytes, digest: int, verb: Verb) -> None:
    assert verb_of(step(key, payload=payload, digest=digest), asked=False) is verb


def test_a_question_is_known_by_its_own_row() -> None:
    assert verb_of(step("approve"), asked=True) is Verb.QUESTION


@pytest.mark.parametrize(
    ("key", "name"), [("a", "a"), ("1/2/a#3", "a"), ("#1/a", "a"), ("start:b", "start:b"), ("a~2", "a"), ("", "")]
)
def test_a_key_ends_in_a_name(key: str, name: str) -> None:
    assert name_of(key) == name


def test_the_place_between_two_tries_names_the_step_and_the_try() -> None:
    assert try_before("1/fetch#2~3") == ("1/fetch#2", 3)
    assert try_before("fetch") is None and try_before("fetch~" + "1" * 40) is None


def test_the_place_where_a_step_waits_for_its_budget_names_the_step() -> None:
    assert for_budget(retry_place("1/fetch#2$", 3)) == "1/fetch#2"
    assert for_budget(retry_place("fetch", 3)) is None and for_budget("fetch") is None


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("1/pay#2", "1/pay#2"),
        (ask_place("1/pay#2", 3), "1/pay#2?"),
        (budget_place(42, 7), "budget?"),
        (place_beside("pay", 1, "undo 2", 7), "pay (undo)"),
        (place_beside("pay", 1, "verify 3", 7), "pay (verify)"),
        (retry_place("fetch", 3), "fetch~3"),
    ],
)
def test_a_place_beside_a_step_is_shown_by_the_step(key: str, shown: str) -> None:
    assert shown_key(key) == shown
