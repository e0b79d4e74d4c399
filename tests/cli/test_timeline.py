"""What happened to a run, from its log."""

from __future__ import annotations

import msgspec
import pytest

from perdure.cli.awaiting import Around
from perdure.cli.reading import RunLog
from perdure.cli.timeline import Forked, Handover, Parked, Try, timeline
from perdure.cli.timeline_words import span
from perdure.cli.verbs import Verb, name_of, try_before, verb_of
from perdure.core.records import Checkpoint, Interrupt, Kind, RunState
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
