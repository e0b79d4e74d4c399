"""Reserving: what a try of a step may cost is set aside before it begins, in every budget that its run counts against.

Where a budget has not enough, the step waits. If what is in flight stands in its way, it looks again when that may have
been settled. If it is spent, the run asks "raise or stop?" (a question like any other: answered by `perdure resume` or
`app.resume`, and withdrawn when somebody sets the budget), parked until then. Code that cleans up after a cancellation
is not held up: what it must do, it does, and that counts.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure.core.answers import payload_digest, schema_bytes
from perdure.core.budgets import (
    RAISE_OR_STOP,
    Amounts,
    BudgetRow,
    Limits,
    NewBudget,
    in_users_units,
    lacking,
    raised,
    set_aside,
)
from perdure.core.changes import NewInterrupt, Reserve
from perdure.core.codec import codec_for
from perdure.core.keys import budget_place, retry_place
from perdure.core.records import InterruptState, WaitKind, run_id
from perdure.core.requests import Bounce
from perdure.core.retry import Retry, backoff_s
from perdure.core.snapshot import spill
from perdure.errors import BudgetExceeded, NotSerializable, Unwind, UsageError
from perdure.runtime.metering import file_cut_off
from perdure.runtime.patience import outlast
from perdure.runtime.pausing import pause

if TYPE_CHECKING:
    from perdure.runtime.frames import StepFrame
    from perdure.runtime.superstep import SuperStep

LOOKS: Final = Retry(attempts=1_000_000, delay_s=0.05, max_delay_s=30.0)
"""When what is in flight is looked at again."""

LOOKS_APART: Final = 12
"""After so many the pauses do not grow any more."""

BESIDE: Final = "$"
"""What a key gets behind it for the waits of its reservation."""


class NoBudgetError(Exception):
    """The step may not be tried: somebody has said so."""

    def __init__(self, error: BudgetExceeded) -> None:
        super().__init__(str(error))
        self.error = error


async def reserve(here: StepFrame, wanted: Amounts) -> None:
    """Reserve what a try of this step may cost; wait until there is enough. Raises `NoBudgetError` where a person says
    that there will not be. (Code that cleans up reserves nothing, which there always is: so that each try counts.)"""
    at, key = here.super_step, here.key
    looks = _looks_before(at, key)
    while not await _granted(here, Amounts() if at.cleaning_up is not None else wanted):
        answers = at.budget_answers
        rows = await outlast("budgets", functools.partial(at.host.store.get_budgets, at.claimed.budgets))
        at.check()
        if at.budget_answers != answers:
            continue  # another branch has set one meanwhile; what was read may be older
        spent = next((row for row in rows if lacking(row, wanted, in_flight=False)), None)
        if spent is not None:
            await _ask_once(at, key, spent, wanted)
        else:
            looks += 1
            await pause(at, key + BESIDE, looks, backoff_s(LOOKS, looks))


async def _granted(here: StepFrame, wanted: Amounts) -> bool:
    """Reserve it, if there is enough. What is cut off meanwhile may have been granted, and is released."""
    at, claimed = here.super_step, here.super_step.claimed
    batch = at.submit(
        Reserve(claimed.run, claimed.fence, claimed.thread, at.number, here.key, claimed.budgets, wanted)
    )  # fmt: skip
    try:
        await at.kept(batch)
    except (asyncio.CancelledError, Unwind):
        file_cut_off(here, at.host.clock.wall_us(), began=False)
        raise
    place = (claimed.run, at.number, here.key)
    return batch.done.result().bounced.get(place) is not Bounce.BUDGET


def _looks_before(at: SuperStep, key: str) -> int:
    """How often it has looked at what is in flight, in earlier claims: the pauses go on growing."""
    looked = (n for n in range(1, LOOKS_APART) if at.waiting_for(retry_place(key + BESIDE, n)))
    return max(looked, default=0)


async def _ask_once(at: SuperStep, key: str, row: BudgetRow, wanted: Amounts) -> None:
    """Ask, where nobody does so already; returns when the budget may have more. About a budget as it was set last a
    super-step has one question, whichever of its steps asks it: those that come after its answer find that."""
    place = budget_place(row.id, row.rev)
    if at.waiting.is_led(place):
        await at.waiting.follow(place)
    else:
        with at.waiting.leading(place):
            await _ask(at, place, key, row, wanted)
        at.budget_answers += 1


async def _ask(at: SuperStep, place: str, key: str, row: BudgetRow, wanted: Amounts) -> None:
    """Ask whether the budget is raised, and raise it."""
    payload = codec_for(Any).encode(_shown(key, row, wanted))
    shown, blobs = spill(payload)
    question = NewInterrupt(
        await at.host.ids.take(1), "budget", shown, schema_bytes(RAISE_OR_STOP), payload_digest(payload), "raise", None,
        (row.id, row.rev),
    )  # fmt: skip
    try:
        wait = await at.waiting.until(place, WaitKind.ANSWER, interrupt=question, blobs=blobs)
        assert wait.target is not None
        found = await at.host.reads.interrupts.one(wait.target)
        at.check()
        if found is not None and found.state is InterruptState.ANSWERED:
            assert found.answer is not None
            await _answered(at, row, wanted, await at.load(found.answer), found.answered_by)
    finally:  # what has come would keep the run from being parked
        at.waiting.withdraw(place)


async def _answered(at: SuperStep, row: BudgetRow, wanted: Amounts, answer: bytes, by: str | None) -> None:
    """Do what was answered. The budget is set before the wait is closed: done again, it is set to the same. Somebody
    else may set it meanwhile: then that is looked at first."""
    store = at.host.store
    while True:
        now = await outlast("budgets", functools.partial(store.get_budgets, [row.id]))
        at.check()
        limits = _limits(at, row, wanted, now[0], answer, by)
        change = functools.partial(store.set_budget, NewBudget(row.id, row.name, limits), by, if_rev=now[0].rev)
        done = await outlast("budgets", change)
        at.check()
        if done.rev == now[0].rev + 1 and done.limits == limits:
            return  # also where it raises nothing: then there is another question to be asked


def _limits(at: SuperStep, row: BudgetRow, wanted: Amounts, now: BudgetRow, answer: bytes, by: str | None) -> Limits:
    """What a budget that is like that now is to be set to."""
    try:
        limits = raised(answer, now.limits)
    except (NotSerializable, UsageError) as error:
        limits = None
        by = f"{by or 'somebody'}, in an answer that says nothing ({error})"
    if limits is None:
        _stop(at.claimed.run, row, wanted, by)
    return limits


def _stop(run: int, row: BudgetRow, wanted: Amounts, by: str | None) -> NoReturn:
    short = lacking(row, wanted, in_flight=False)
    named = ["seconds" if unit == "us" else unit for unit in short]
    what, flags = ", ".join(named), " ".join(f"--{name} LIMIT" for name in named)
    raise NoBudgetError(
        BudgetExceeded(
            f"budget {row.name} has not enough {what} left, and {by or 'whoever was asked'} said to stop; to go on, "
            f"raise it (`perdure budgets set {row.name} {flags}`), then `perdure retry {run_id(run)}`",
            budget=row.name,
            lacking=what,
        )
    )


def _shown(key: str, row: BudgetRow, wanted: Amounts) -> dict[str, Any]:
    """What is asked, for whoever answers."""
    limited = {name: limit for name, limit in in_users_units(row.limits).items() if limit is not None}
    spent, wants = in_users_units(row.spent), in_users_units(set_aside(wanted))
    return {
        "budget": row.name,
        "question": "Raise the budget, or stop?",
        "limit": limited,
        "spent": {name: spent[name] for name in limited},
        "wanted": {name: wants[name] for name in limited if wants[name]},
        "step": key,
        "answer": 'one of {"raise_to": {"usd": ...}} (or tokens, steps, seconds) and {"stop": true}',
    }
