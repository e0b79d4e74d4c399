"""What happened to a run, from its log."""

from __future__ import annotations

from perdure.cli.timeline import Handover, Try, timeline
from perdure.core.records import Kind, RunState
from tests.cli.rows import attempt, run, step


def test_steps_stand_in_the_order_they_were_recorded() -> None:
    made = timeline(run(), [step("b", seq=1), step("a", seq=0), step("c", super_step=2)], [])

    assert [super_step.number for super_step in made.super_steps] == [1, 2]
    assert [line.key for line in made.super_steps[0].lines if not isinstance(line, Handover | Try)] == ["a", "b"]


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
