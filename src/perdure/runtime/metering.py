"""Meters: what a try uses, noted while it runs, and filed with what it comes to.

`meter` in a body notes; the record of the step, or of the try that failed, carries the notes into its commit. So a
replay files none, a crash loses those of the try that it cut short, and what is done again counts once. In agent code
`meter` is a recorded call of its own, as `now` is.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from perdure.core.budgets import Spent, used
from perdure.core.digests import digest64
from perdure.core.keys import place_beside
from perdure.core.limits import METERS_MAX
from perdure.core.meters import Meter, attributes_bytes, billionths
from perdure.errors import NotInRun, UsageError
from perdure.runtime.frames import AgentFrame, StepFrame, frame
from perdure.runtime.recording import NOTHING
from perdure.runtime.settings import check_name

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep


class Use(NamedTuple):
    """What a try has used, as its change carries it."""

    meters: tuple[Meter, ...] = ()
    spent: Spent | None = None


NO_USE: Final = Use()


def meter(name: str, quantity: float | Decimal, **attributes: Any) -> None:
    """Note that so much was used: in the billing ledger once the step's commit is on disk, with the try that it belongs
    to, and never again on replay.

    `quantity`: a number from 0 on, kept to the billionth. `attributes`: text or numbers that say more, such as
    `model="small"`. Of all names, "usd" and "tokens" count against budgets. In a step's body (a thread too, but not
    another process) or in agent code.
    """
    made = Meter(check_name("a meter's name", name), billionths(quantity), attributes_bytes(attributes))
    where = frame.get()
    match where:
        case StepFrame() if len(where.meters) >= METERS_MAX:
            raise UsageError(
                f"step {where.name!r} has called perdure.meter() {METERS_MAX:,} times in one try, as often as it may; "
                "add up what is alike, and meter the sum"
            )
        case StepFrame():
            where.meters.append(made)
        case AgentFrame():
            _record(where, made)
        case _:
            raise NotInRun(
                "perdure.meter() was called outside of a run; call it in an agent or in a step's body (of a step with "
                'cpu="process", return what was used, and meter it in the agent)'
            )


def use_of(at: SuperStep, meters: list[Meter], began_s: float, *, steps: int = 1) -> Use:
    """What was used by a try that began then (`StepFrame.began_s`), and ends now."""
    budgets = at.claimed.budgets
    if not meters and not budgets:
        return NO_USE
    noted = tuple(meters)
    if not budgets:
        return Use(noted)
    us = round((at.host.clock.monotonic() - began_s) * 1_000_000) if steps else 0
    return Use(noted, Spent(budgets, used(noted, steps=steps, us=us)))


def file_beside(at: SuperStep, key: str, attempt: int, what: str, meters: list[Meter], started_at: int) -> None:
    """File what was used beside a try, by something that has no record of its own."""
    if meters and at.hears:
        _file(at, key, attempt, what, started_at, use_of(at, meters, 0.0, steps=0))


def file_cut_off(here: StepFrame, started_at: int, *, began: bool) -> None:
    """File what a try has used that agent code has cancelled, or that the end of its super-step has cut off, and
    release what was reserved for it. It has no record: where the code is replayed, it is cancelled again or tried
    anew."""
    at = here.super_step
    use = use_of(at, here.meters, here.began_s, steps=int(began))
    if use is NO_USE or here.filed or not at.hears:
        return
    here.filed = True
    if use.spent is not None:
        use = use._replace(spent=replace(use.spent, key=here.key))
    _file(at, here.key, here.attempt, "cancelled", started_at, use)


def _file(at: SuperStep, key: str, attempt: int, what: str, started_at: int, use: Use) -> None:
    place = place_beside(key, attempt, what, at.claimed.fence)
    record = at.record(place, 0, attempt, NOTHING, failed=False, started_at=started_at, use=use)
    if at.ending is None:
        at.submit(record)
    else:
        at.submit_late(record)


def _record(where: AgentFrame, made: Meter) -> None:
    at = where.super_step
    at.enter_now()
    key = where.scope.key("meter")
    args = (made.name, made.quantity, made.attributes)
    digest = digest64((args, {}))
    record = at.recorded(key, digest, args, {})
    if record is not None:
        at.turns.passed(record.seq)
        return
    began = at.host.clock.wall_us()
    use = use_of(at, [made], 0.0, steps=0)
    at.append(key, digest, 1, NOTHING, failed=False, started_at=began, use=use)
