"""What the side log of agents that wait says about their wake-ups: how many there were, whether somebody was woken
twice for one thing, and how late it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Interrupt, Run, WaitKind, run_id
from perdure.core.requests import InterruptFilter
from perdure.store.protocol import Store
from tests.support.sidelog import Body, Line, SideLog


@dataclass
class Wakeups:
    """Of the waits of a side log: where code came to stand, where it was woken there, and where a message's reader went
    on with it, in the log's order. (Code that comes back to a `receive` finds the message before it waits.)"""

    stands: dict[Body, list[Line]]
    woken: dict[Body, list[Line]]
    digested: dict[Body, list[Line]]

    @classmethod
    def of(cls, log: SideLog) -> Wakeups:
        """As far as the log has come."""
        found = cls({}, {}, {})
        for line in log.lines():
            match line:
                case {"what": "stands"}:
                    found.stands.setdefault(_place(line), []).append(line)
                case {"what": "woken"}:
                    found.woken.setdefault(_place(line), []).append(line)
                case {"what": "begin", "number": _}:
                    found.digested.setdefault(_place(line), []).append(line)
        return found

    def kinds(self, *, without: Set[str]) -> Counter[str]:
        """How many waits there were of each kind, without those of some runs."""
        return Counter(lines[0]["kind"] for place, lines in self.stands.items() if place[0] not in without)

    def nobody_was_woken_twice(self, gone: Set[int]) -> None:
        """Code was woken again only where the process that it had been woken in was gone."""
        for place, lines in self.woken.items():
            before = {line["pid"] for line in lines[:-1]}
            assert before <= gone, f"{place} was woken again, though nobody had died: {lines}"

    def late_s(self, causes: dict[Body, int]) -> dict[str, list[float]]:
        """For each kind, how long after its cause (on the store's clock) each wait was woken, in seconds, sorted. What
        had come before somebody waited for it is counted from then on."""
        found: dict[str, list[float]] = {}
        for (run, super_step, key), (stood, *_) in self.stands.items():
            place = run, super_step, key
            after = self.digested if stood["kind"] == WaitKind.MESSAGE.name else self.woken
            first = next(iter(after.get((run, super_step, key.replace("receive", "digest")), ())), None)
            cause = causes.get(place) or (first or {}).get("due_at")
            if first is not None and cause is not None:
                late_us = first["wall_us"] - max(cause, stood["wall_us"])
                found.setdefault(stood["kind"], []).append(late_us / 1e6)
        return {kind: sorted(times) for kind, times in found.items()}


async def causes(store: Store, log: SideLog, runs: Iterable[Run], wakeups: Wakeups) -> dict[Body, int]:
    """When that came which ended each wait for an answer, a message from outside or a child."""
    ended = {run.id: run.ended_at for run in runs}
    found: dict[Body, int] = {}
    for place, lines in wakeups.woken.items():
        if lines[0]["kind"] == WaitKind.RUN.name and (at := ended[lines[0]["target"]]):
            found[place] = at
    for each in await _questions(store):
        if each.answered_at is not None:
            found[run_id(each.run), each.super_step, each.key] = each.answered_at
    for line in log.lines("sent"):
        nth = f"#{line['number'] + 1}" if line["number"] else ""
        found[line["run"], 1, f"receive{nth}"] = line["wall_us"]
    return found


async def _questions(store: Store) -> list[Interrupt]:
    found: list[Interrupt] = []
    while True:
        after = found[-1].id if found else None
        page = await store.interrupts(InterruptFilter(state=None, limit=LIST_ROWS_MAX, after=after))
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found


def told_late(counts: Counter[str], late: dict[str, list[float]], *, killed: int) -> str:
    """A table of it: of each kind how many, and how late they were woken in the middle, nearly all, and at worst."""
    rows = [f"{sum(counts.values()):,} waits, {killed} workers killed; woken after (ms): p50, p99, at worst"]
    for kind, count in sorted(counts.items()):
        times = sorted(late.get(kind, []))
        if times:
            points = (times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])
            rows.append(f"{kind:9}{count:7,}" + "".join(f"{point * 1000:10,.1f}" for point in points))
        else:
            rows.append(f"{kind:9}{count:7,}")
    return "\n".join(rows)


def _place(line: Line) -> Body:
    return line["run"], line["super_step"], line["key"]
