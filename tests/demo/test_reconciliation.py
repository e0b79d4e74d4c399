"""The reconciliation of the service's book with the store, on both made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.client.inbox import InterruptInfo
from perdure.core.effects import EffectState
from perdure.core.records import InterruptState
from perdure.demo.billing import Entry, Line
from perdure.demo.reconciliation import Accounts, was_unknown


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def event(state: EffectState, worker: str, second: int, attempt: int = 1) -> EffectEventInfo:
    return EffectEventInfo(at(second), state, attempt, worker, None, None)


def an_effect(number: int, *events: EffectEventInfo, policy: str = "retry") -> EffectInfo:
    return EffectInfo(
        id=f"e{number}", run_id=f"r{number}", thread_id=f"t{number}", agent="research", name="charge", key="charge",
        super_step=4, state=events[-1].state, arguments=[f"t{number}", 25], result={"receipt": "x", "cents": 25},
        error=None, idempotency_key=f"k{number}", policy=policy, undoable=False, attempt=1, undo_attempt=0, note=None,
        by=None, worker="w1", intended_at=at(1), settled_at=at(2), tenant=None, events=events,
    )  # fmt: skip


def an_approval(number: int, *, approve: bool = True, second: int = 0) -> InterruptInfo:
    return InterruptInfo(
        id=f"i{number}", run_id=f"r{number}", thread_id=f"t{number}", agent="research", name="approve",
        state=InterruptState.ANSWERED, payload={}, schema=None, assignee="demo", digest="", on_timeout="raise",
        created_at=at(0), expires_at=None, answer={"approve": approve}, answered_by="demo", answered_at=at(second),
        tenant=None,
    )  # fmt: skip


def a_charge(number: int, *, key: str | None = None, cents: int = 25) -> Line:
    return Line(Entry.CHARGE, key or f"k{number}", f"t{number}", cents, f"receipt {number}")


INTENDED, DONE, UNKNOWN = EffectState.INTENDED, EffectState.DONE, EffectState.UNKNOWN

ACCOUNTS = Accounts(
    lines=(a_charge(1), a_charge(2), Line(Entry.LOST, "k2", "t2", 25, "receipt 2"), a_charge(3)),
    effects=(
        an_effect(1, event(INTENDED, "w1", 1), event(DONE, "w1", 2)),
        an_effect(2, event(INTENDED, "w1", 1), event(UNKNOWN, "w1", 2), event(DONE, "w1", 3), policy="verify"),
        an_effect(3, event(INTENDED, "w1", 1), event(INTENDED, "w2", 5, 2), event(DONE, "w2", 6, 2)),
    ),
    approvals=(an_approval(1), an_approval(2), an_approval(3)),
)
"""The service lost its answer to the second charge, and the worker of the third was killed."""


def broken(accounts: Accounts) -> list[str]:
    return [promise.text for promise in accounts.promises if not promise.holds]


def test_an_account_that_balances_keeps_every_promise() -> None:
    assert broken(ACCOUNTS) == []
    assert [promise.text for promise in ACCOUNTS.promises] == [
        "charges approved before they were made 3/3",
        "charges in the service's own file 3/3: 0 twice, 0 missing, 0 that the store does not know; both say 0.75",
        "unknown outcomes 2, resolved 2/2 (1 answers lost, 1 in flight at the kill; 1 sent again under the same key, "
        "1 asked about)",
    ]


def test_an_account_that_was_charged_twice_is_seen() -> None:
    (text,) = broken(replace(ACCOUNTS, lines=(*ACCOUNTS.lines, a_charge(1, key="k9"))))

    assert "4/3: 1 twice, 0 missing, 1 that the store does not know; it says 1.00, the store 0.75" in text


def test_a_charge_that_is_not_in_the_book_is_missed() -> None:
    (text,) = broken(replace(ACCOUNTS, lines=ACCOUNTS.lines[1:]))

    assert "2/3: 0 twice, 1 missing" in text


def test_a_charge_of_another_sum_is_seen() -> None:
    (text,) = broken(replace(ACCOUNTS, lines=(a_charge(1, cents=99), *ACCOUNTS.lines[1:])))

    assert text.endswith("it says 1.49, the store 0.75")


def test_an_approved_charge_that_nobody_made_is_missed() -> None:
    (text,) = broken(replace(ACCOUNTS, approvals=(*ACCOUNTS.approvals, an_approval(4))))

    assert "3/4: 0 twice, 1 missing" in text


def test_a_charge_before_its_approval_is_seen() -> None:
    late = replace(ACCOUNTS, approvals=(an_approval(1, second=9), *ACCOUNTS.approvals[1:]))

    assert broken(late) == ["charges approved before they were made 2/3"]


def test_a_refused_charge_is_neither_made_nor_missed() -> None:
    refused = replace(ACCOUNTS, approvals=(*ACCOUNTS.approvals, an_approval(4, approve=False)))

    assert broken(refused) == []
    assert refused.promises[0].text.endswith("3/3; 1 refused, and not made")


def test_a_charge_that_was_refused_and_made_is_seen() -> None:
    refused = replace(ACCOUNTS, approvals=(an_approval(1, approve=False), *ACCOUNTS.approvals[1:]))

    assert len(broken(refused)) == 2


def test_an_outcome_that_stays_unknown_is_seen() -> None:
    left = an_effect(3, event(INTENDED, "w1", 1), event(UNKNOWN, "w1", 2))

    assert broken(replace(ACCOUNTS, effects=(*ACCOUNTS.effects[:2], left)))[-1].startswith(
        "unknown outcomes 2, resolved 1/2"
    )


def test_a_lost_answer_that_the_store_never_missed_is_seen() -> None:
    lost = Line(Entry.LOST, "k1", "t1", 25, "receipt 1")

    (text,) = broken(replace(ACCOUNTS, lines=(*ACCOUNTS.lines, lost)))

    assert text.endswith("1 answers were lost, and the store knows nothing of it")


def test_a_try_that_another_worker_found_was_unknown() -> None:
    assert was_unknown((event(INTENDED, "w1", 1), event(DONE, "w2", 2)))
    assert not was_unknown((event(INTENDED, "w1", 1), event(DONE, "w1", 2)))
    assert not was_unknown((event(INTENDED, "w1", 1), event(EffectState.ABSENT, "w1", 2), event(INTENDED, "w2", 3)))
