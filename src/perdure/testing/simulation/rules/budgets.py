"""Budgets: what is spent and reserved is what the tries say that were recorded, and those in flight.

Here is a second set of books, kept from the writes alone. What a budget's row says has to be the same; a reservation is
refused exactly where there is not enough; and what is taken is never more than was allowed and what tries have used
beyond what was reserved for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.budgets import UNITS, UNKNOWN, Amounts, BudgetRow, NewBudget, Spent, lacking
from perdure.core.changes import AppendCheckpoint, BeginSuperStep, EndRun, Place, RecordAttempt, RequeueRun, Reserve
from perdure.core.codec import codec_for
from perdure.core.meters import UNIT, billionths
from perdure.core.records import Interrupt, InterruptState, Run, RunState
from perdure.core.requests import Bounce, StartRun
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.batches import tried, turns
from perdure.testing.simulation.rules.look import Look, Write

_ABOUT: Final = re.compile(r"(.*)~(\d+)\$(\d+)")
"""The key of a question: its step's, and the budget and its revision."""


@dataclass(slots=True)
class Books:
    """What budgets have."""

    given: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By run: its own, and its parent's."""
    spent: dict[int, Amounts] = field(default_factory=dict)
    counts: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """By run and fence: what its claim said that it counts against."""
    reserved: dict[Place, dict[int, tuple[int, Amounts]]] = field(default_factory=dict)
    """By place and budget: under which fence, and what."""
    asked: Counter[Reserve] = field(default_factory=Counter)
    """How often this came: a try's is the same as the one of the try before."""
    counted: set[tuple[Place, int, int]] = field(default_factory=set)
    """Tries that were counted without being their step's record: place, attempt and fence."""
    beyond: dict[tuple[int, str], int] = field(default_factory=dict)
    """By budget and unit: what tries have used beyond what was reserved."""
    highest: dict[tuple[int, str], int] = field(default_factory=dict)
    """By budget and unit: the highest limit that was ever set, or what was taken when one was."""

    def give(self, ask: StartRun, look: Look) -> None:
        """A run has been started."""
        own = [row.id for row in look.budgets.values() if ask.budget is not None and row.name == f"run:r{ask.id}"]
        inherited = () if ask.parent is None else self.of_run(look.runs[ask.parent.run], look)
        self.given[ask.id] = tuple(sorted({*own, *inherited}))

    def of_run(self, run: Run, look: Look) -> tuple[int, ...]:
        """What a run counts against."""
        names = {f"agent:{run.agent}", f"tenant:{run.tenant}"}
        named = (row.id for row in look.budgets.values() if row.name in names)
        return tuple(sorted({*self.given.get(run.id, ()), *named}))

    def taken(self, budget: int) -> Amounts:
        """All that is spent or reserved."""
        return total([self.spent.get(budget, Amounts()), *(amounts for _, _, amounts in self.of_budget(budget))])

    def held(self, look: Look) -> tuple[dict[int, list[Amounts]], dict[int, list[Amounts]]]:
        """By budget: what is spent, and what is reserved by tries in flight. What a claim that is over has reserved is
        spent."""
        over = {budget: [amounts] for budget, amounts in self.spent.items()}
        flying: dict[int, list[Amounts]] = {}
        for (run, _, _), those in self.reserved.items():
            owner = look.runs[run]
            for budget, (fence, amounts) in those.items():
                in_flight = owner.state is RunState.RUNNING and owner.fence == fence
                (flying if in_flight else over).setdefault(budget, []).append(amounts)
        return over, flying

    def of_budget(self, budget: int) -> Iterator[tuple[Place, int, Amounts]]:
        """What is reserved in one: place, fence and amounts."""
        for place, those in self.reserved.items():
            if budget in those:
                yield place, *those[budget]

    def reserve(self, change: Reserve, look: Look) -> None:
        """A reservation was granted."""
        place = change.run, change.super_step, change.key
        for budget, (_, amounts) in self.reserved.pop(place, {}).items():
            self.spent[budget] = total([self.spent.get(budget, Amounts()), amounts])
        there = [each for each in change.budgets if each in look.budgets]
        if there:
            aside = Amounts(*(max(0, getattr(change.amounts, unit)) for unit in UNITS))
            self.reserved[place] = dict.fromkeys(there, (change.fence, aside))

    def close(self, look: Look) -> None:
        """What runs that have ended had reserved is spent for good."""
        for place in [each for each in self.reserved if look.runs[each[0]].state in TERMINAL]:
            for budget, (_, amounts) in self.reserved.pop(place).items():
                self.spent[budget] = total([self.spent.get(budget, Amounts()), amounts])

    def settle(self, said: AppendCheckpoint | RecordAttempt, look: Look) -> None:
        """A try has come to its end."""
        if said.spent is None:
            return
        place = said.run, said.super_step, said.spent.key or said.key
        held = self.reserved.get(place, {})
        if isinstance(said, RecordAttempt):
            this = place, said.attempt, said.fence
            if this in self.counted or all(fence != said.fence for fence, _ in held.values()):
                return
            self.counted.add(this)
        self.reserved.pop(place, None)
        self._count(said.spent, held, look)

    def _count(self, said: Spent, held: dict[int, tuple[int, Amounts]], look: Look) -> None:
        for budget in said.budgets:
            if budget not in look.budgets:
                continue
            self.spent[budget] = total([self.spent.get(budget, Amounts()), said.amounts])
            _, reserved = held.get(budget, (0, Amounts()))
            for unit in UNITS:
                over = max(0, getattr(said.amounts, unit) - getattr(reserved, unit))
                self.beyond[budget, unit] = self.beyond.get((budget, unit), 0) + over

    def allow(self, row: BudgetRow) -> None:
        """Limits were set."""
        taken = self.taken(row.id)
        for unit in UNITS:
            at, limit = (row.id, unit), getattr(row.limits, unit)
            least = getattr(taken, unit) if limit is None else limit
            self.highest[at] = max(self.highest.get(at, 0), least)
            if limit is None:
                self.highest[at] = 2**62


def of_budgets(write: Write, books: Books) -> Iterator[str]:
    """What each budget has, and what was answered to who wanted some of it."""
    if not write.now.budgets:
        return
    look = write.now
    for ask in _started(write):
        books.give(ask, look)
    for row in look.budgets.values():
        was = write.before.budgets.get(row.id)
        if was is None or (was.rev, was.limits) != (row.rev, row.limits):
            books.allow(row)
            yield from _of_setting(write, was, row)
    if write.verb == "set_budget" and write.done:
        yield from _of_asking(write, write.args[0])
    books.asked.update(change for change in write.changes if isinstance(change, Reserve))
    for change, why in turns(write):
        if isinstance(change, EndRun | BeginSuperStep | RequeueRun):
            yield from _of_end(books, change)
        elif isinstance(change, Reserve):
            yield from _of_reserving(write, books, change, why)
        elif why is None and (said := tried(change)) is not None:
            yield from _of_use(books, said)
            books.settle(said, look)
    books.close(look)
    over, flying = books.held(look)
    for row in look.budgets.values():
        yield from _of_sums(write, row, total(over.get(row.id, ())), total(flying.get(row.id, ())))
        yield from _of_limits(books, row)
    for claimed in write.answer if write.verb == "claim" and write.done else ():
        books.counts[claimed.run, claimed.fence] = claimed.budgets
        if claimed.budgets != (counts := books.of_run(look.runs[claimed.run], look)):
            yield f"run r{claimed.run} counts against {counts}, and its claim says {claimed.budgets}"
    for asked in look.interrupts.values():
        if asked.state is InterruptState.OPEN and (about := about_of(asked)) is not None:
            yield from _of_question(look, asked, *about)


def _started(write: Write) -> Iterable[StartRun]:
    asked = write.args[0] if write.verb == "start" else [write.args[0].start] if write.verb == "fork" else ()
    return [ask for ask in asked if ask.id in write.now.runs and ask.id not in write.before.runs]


def _of_setting(write: Write, was: BudgetRow | None, row: BudgetRow) -> Iterator[str]:
    """A budget was set, as somebody asked."""
    asked: list[NewBudget] = [ask.budget for ask in _started(write) if ask.budget is not None]
    if write.verb == "set_budget":
        asked.append(write.args[0])
    if all(each.limits != row.limits for each in asked):
        yield f"budget {row.name} was set to {row.limits} by {write.verb}, and nobody has asked for that"
    if row.rev != (1 if was is None else was.rev + 1) or row.updated_at != write.now_us:
        yield f"budget {row.name} was set, and is at revision {row.rev} of {row.updated_at}"


def _of_asking(write: Write, asked: NewBudget) -> Iterator[str]:
    """Who sets a budget sets it, unless he has said which limits he means to change, and those are others by now."""
    (row,) = (row for row in write.now.budgets.values() if row.name == asked.name)
    was, only_if = write.before.budgets.get(row.id), write.kwargs.get("if_rev")
    meant = was is None or only_if in (None, was.rev)
    if meant != (was is None or row.rev != was.rev):
        yield f"budget {row.name} was {'not ' if meant else ''}set, by who meant revision {only_if}: {was}, {row}"
    if write.answer != row:
        yield f"who has set budget {row.name} was told {write.answer}, and it is {row}"


def _of_reserving(write: Write, books: Books, change: Reserve, why: Bounce | None) -> Iterator[str]:
    """It is refused exactly where there is not enough."""
    place = change.run, change.super_step, change.key
    again = any(fence == change.fence for fence, _ in books.reserved.get(place, {}).values())
    if again or place[1:] in write.now.logs.get(change.run, {}):
        return
    short = [
        f"{row.name} {unit}"
        for each in change.budgets
        if (row := write.now.budgets.get(each)) is not None
        for unit in lacking(_as_taken(row, books.taken(each)), change.amounts)
    ]
    if bool(short) != (why is not None):
        told = "there is not enough" if why is not None else "there is enough"
        yield f"run r{change.run} was told for {change.key!r} that {told}; what lacks is {short or 'nothing'}"
    if why is None:
        books.reserve(change, write.now)


def _of_use(books: Books, said: AppendCheckpoint | RecordAttempt) -> Iterator[str]:
    """What has used something says so to all that it counts against."""
    counts = books.counts.get((said.run, said.fence), ())
    if not said.meters or not counts:
        return
    usd = sum(each.quantity for each in said.meters if each.name == "usd")
    tokens = -(-sum(each.quantity for each in said.meters if each.name == "tokens") // UNIT)
    if said.spent is None or (said.spent.budgets, said.spent.amounts.usd, said.spent.amounts.tokens) != (
        counts,
        usd,
        tokens,
    ):
        yield f"run r{said.run} has used {usd} and {tokens} in {said.key!r}, of {counts}, and spends {said.spent}"


def has_reserved(books: Books, look: Look, place: Place, fence: int) -> bool:
    """Whether a claim that lasts has reserved for a try of this step."""
    run = look.runs[place[0]]
    lasts = run.state is RunState.RUNNING and run.fence == fence
    held = books.reserved.get(place, {})
    there = [each for each in books.counts.get((run.id, fence), ()) if each in look.budgets]
    return not lasts or all(each in held and held[each][0] == fence for each in there)


def _of_end(books: Books, change: EndRun | BeginSuperStep | RequeueRun) -> Iterator[str]:
    """Code that has come to an end has no try in flight: nothing is reserved for one any more."""
    for place, those in books.reserved.items():
        mine = place[0] == change.run and any(fence == change.fence for fence, _ in those.values())
        if mine and all(n < 2 for each, n in books.asked.items() if (each.run, each.super_step, each.key) == place):
            yield f"run r{change.run} has come to an end of its code, and {place[2]!r} is still reserved for: {those}"


def _as_taken(row: BudgetRow, taken: Amounts) -> BudgetRow:
    return BudgetRow(row.id, row.name, row.limits, taken, Amounts(), row.rev, row.created_at, row.updated_at, row.by)


def _of_sums(write: Write, row: BudgetRow, spent: Amounts, reserved: Amounts) -> Iterator[str]:
    if (row.spent, row.reserved) != (spent, reserved):
        yield (
            f"budget {row.name} says that {row.spent} are spent and {row.reserved} reserved after {write.verb}; they "
            f"are {spent} and {reserved}"
        )


def _of_limits(books: Books, row: BudgetRow) -> Iterator[str]:
    """It was not overdrawn."""
    for unit in UNITS:
        taken = getattr(row.spent, unit) + getattr(row.reserved, unit)
        allowed = books.highest.get((row.id, unit), 0) + books.beyond.get((row.id, unit), 0)
        if taken > allowed:
            yield f"budget {row.name}: {taken} {unit} are taken, and {allowed} were allowed and used beyond estimates"


def _of_question(look: Look, asked: Interrupt, key: str, budget: int, rev: int) -> Iterator[str]:
    """Nobody waits for a word about a budget that was set since, or that has enough left."""
    row = look.budgets.get(budget)
    name = f"i{asked.id} of run r{asked.run}, about {key!r},"
    if row is None or row.rev != rev:
        yield f"{name} asks about budget {row and row.name} as it was set {rev} times: {row}"
    elif not lacking(row, _wanted(asked), in_flight=False):
        yield f"{name} asks for more of {row.name}, which has enough: {row}"


def _wanted(asked: Interrupt) -> Amounts:
    """What a question says that its step wants; of what it does not speak, nobody knows how much."""
    said = {unit: amount for unit, amount in codec_for(Any).decode(asked.payload)["wanted"].items() if amount > 0}
    usd = billionths(said["usd"]) if "usd" in said else UNKNOWN
    us = round(said["seconds"] * 1_000_000) if "seconds" in said else UNKNOWN
    return Amounts(usd, said.get("tokens", UNKNOWN), said.get("steps", UNKNOWN), us)


def about_of(asked: Interrupt) -> tuple[str, int, int] | None:
    """The step, the budget and its revision that a question is about, if it is about one."""
    found = _ABOUT.fullmatch(asked.key)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def total(amounts: Iterable[Amounts]) -> Amounts:
    """All of them together."""
    usd = tokens = steps = us = 0
    for each in amounts:
        usd, tokens, steps, us = usd + each.usd, tokens + each.tokens, steps + each.steps, us + each.us
    return Amounts(usd, tokens, steps, us)
