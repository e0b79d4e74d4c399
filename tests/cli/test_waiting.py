"""Why a run does not go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.cli.waiting import Why, why
from perdure.core.records import HeldReason, Run, RunState, Worker
from tests.cli.rows import NOW, SECOND, run, worker


def asked(subject: Run, *, head: Run | None = None, workers: Sequence[Worker] = ()) -> Why:
    answer = why(subject, head=head, workers=workers, now_us=NOW)
    assert answer is not None
    return answer


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
def test_a_run_that_ended_waits_for_nothing(state: RunState) -> None:
    assert why(run(state=state), head=None, workers=(), now_us=NOW) is None


def test_a_run_on_a_live_worker_waits_for_nothing() -> None:
    running = run(state=RunState.RUNNING, worker=5)

    assert why(running, head=None, workers=[worker()], now_us=NOW) is None


def test_a_run_whose_worker_is_silent_waits_to_be_taken_over() -> None:
    running = run(state=RunState.RUNNING, worker=5)
    late = worker(lease_until=NOW - 4 * SECOND)

    alone = asked(running, workers=[late])
    helped = asked(running, workers=[late, worker(id=6)])

    assert "the lease of w5 ran out 4 s ago" in alone.what and "no other is alive" in alone.what
    assert alone.remedy is not None and "perdure worker" in alone.remedy
    assert helped.short == "to be taken over"


def test_a_worker_without_a_sign_of_life_counts_as_gone_before_its_lease_ends() -> None:
    running = run(state=RunState.RUNNING, worker=5)

    answer = why(running, head=None, workers=[worker()], now_us=NOW, silent={5})
    queued = why(run(), head=None, workers=[worker()], now_us=NOW, silent={5})

    assert answer is not None and "w5 shows no sign of life" in answer.what
    assert queued is not None and queued.short == "no worker is alive"


def test_a_run_whose_worker_has_no_row_any_more_says_so() -> None:
    answer = asked(run(state=RunState.RUNNING, worker=5), workers=[worker(id=6)])

    assert "its worker is gone" in answer.what


def test_a_queued_run_names_the_run_before_it() -> None:
    answer = asked(run(ready=False), head=run(id=9, state=RunState.RUNNING))

    assert "r9" in answer.what and "running" in answer.what


def test_a_run_behind_a_held_one_says_so_and_where_to_look() -> None:
    answer = asked(run(ready=False), head=run(id=9, state=RunState.HELD, reason="poison"))

    assert "r9" in answer.what and "poison" in answer.what
    assert answer.remedy == "`perdure runs show r9`"


def test_a_run_that_is_not_due_says_when_it_is() -> None:
    answer = asked(run(ready_at=NOW + 90 * SECOND), workers=[worker()])

    assert "not due for 1 min 30 s" in answer.what


def test_without_a_live_worker_the_remedy_is_to_start_one() -> None:
    answer = asked(run(), workers=[worker(lease_until=NOW - 1)])

    assert "none is alive" in answer.what
    assert answer.remedy is not None and "agent research on queue default" in answer.remedy


def test_a_pinned_run_names_the_deployment_that_nobody_serves() -> None:
    answer = asked(run(deployment="green"), workers=[worker()])

    assert "green" in answer.what
    assert answer.remedy is not None and "--deployment green" in answer.remedy


def test_idle_workers_that_do_not_take_a_due_run_do_not_serve_it() -> None:
    answer = asked(run(queue="gpu"), workers=[worker()])

    assert "not taking it" in answer.what
    assert answer.remedy is not None and "--queue gpu" in answer.remedy


def test_a_run_that_has_just_become_due_is_given_time_to_be_claimed() -> None:
    answer = asked(run(ready_at=NOW - SECOND), workers=[worker()])

    assert answer.short == "about to be claimed" and answer.remedy is None


def test_a_run_before_busy_workers_waits_for_a_slot() -> None:
    answer = asked(run(), workers=[worker(idle=False, running=40)])

    assert answer == Why("waits for a slot", "a free slot: 1 worker alive with 40 runs in hand")


@pytest.mark.parametrize("reason", list(HeldReason))
def test_a_held_run_shows_reason_detail_and_the_command_that_sends_it_on(reason: HeldReason) -> None:
    answer = asked(run(state=RunState.HELD, reason=reason.value, detail="it\nexploded"))

    assert reason.value in answer.what and "it\\nexploded" in answer.what
    assert answer.remedy is not None and "perdure release r12" in answer.remedy


def test_every_state_has_an_answer() -> None:
    changes: dict[str, Any] = {"worker": 5}
    for state in RunState:
        why(run(state=state, **changes), head=None, workers=(), now_us=NOW)
