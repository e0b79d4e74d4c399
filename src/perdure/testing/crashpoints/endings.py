"""What a scenario has left in its store, without what depends on chance or time: two lives that came to the same end
have the same.

Left out are ids, times, workers, fences, and how often something was tried or claimed; run ids inside texts are
replaced by the run's place in the order of starting. A payload is compared as it was recorded, a failure by its type
and message, a state as plain data, a child by its place. Of what was waited for, questions stay, with their answers,
and so does mail; a run that still waits shows for what.
"""

from __future__ import annotations

import difflib
import pprint
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.core.codec import codec_for
from perdure.core.deliveries import DeliveryFilter
from perdure.core.failures import decode_error
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Checkpoint, Message, Run, Thread
from perdure.core.requests import InterruptFilter, RunFilter
from perdure.runtime.payloads import load_payload, load_state
from perdure.store.protocol import Store

VERBS_OF_CHANCE: Final = frozenset({"now", "random", "uuid4"})
"""Recorded values that are other ones in every life."""

RUN_ID: Final = re.compile(r"\br(\d+)\b")
QUESTION_ID: Final = re.compile(r"\bi\d+\b")
BUDGET_PLACE: Final = re.compile(r"~\d+\$")

GIVEN_IDS: Final = ("result:", "cancel:", "send")
"""How the names of calls begin whose arguments are ids of runs, or of threads that may be named after them."""

_encode: Final = msgspec.msgpack.Encoder().encode

SHOWN_CHARS: Final = 400
"""Of a value in a report; what is compared is the whole."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a log."""

    super_step: int
    key: str
    kind: str
    digest: int
    failed: bool
    value: Any = field(compare=False)
    """For people, as is `state`; values are compared as they are recorded, for NaN is not itself."""
    state: Any = field(compare=False)
    recorded: tuple[bytes, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run and its log; the entries of a super-step in the order of their keys."""

    ordinal: int
    agent: str
    queue: str
    key: str | None
    state: str
    ready: bool
    reason: str | None
    super_step: int
    owned: bool
    log: tuple[Entry, ...]
    cancel: str | None = None
    parent: int | None = None
    """The place of the run that started it."""
    waits: tuple[tuple[str, str], ...] = ()
    """Keys and kinds."""
    questions: tuple[Asked, ...] = ()
    """By key."""
    meters: tuple[tuple[int, str, int, str, int], ...] = ()
    """Super-step, key, attempt, name and quantity of each."""
    deliveries: tuple[Handed, ...] = ()
    """By sink, partition and place in it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what became of it."""

    super_step: int
    key: str
    name: str
    state: str
    payload: Any
    answer: Any
    by: str | None


@dataclass(frozen=True, slots=True)
class Handed:
    """A delivery and what became of it. Keys that were not given are other ones in every life, and so is `seq` where
    others deliver to that lane."""

    sink: str
    partition: str
    bill: bool
    state: str
    payload: Any


@dataclass(frozen=True, slots=True)
class ThreadEnd:
    """A thread and its runs in their order."""

    thread_id: str
    agent: str
    busy: bool
    depth: int
    state_of: tuple[int | None, int | None]
    """Which run's boundary holds its newest state: that run's ordinal, and the super-step."""
    runs: tuple[RunEnd, ...]
    mail: tuple[tuple[str, str, bytes], ...] = ()
    """What lies in its mailbox: sender, label and payload."""
    dead_letters: tuple[tuple[str, str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The threads, by their ids."""

    threads: tuple[ThreadEnd, ...]

    def differences(self, other: End) -> str:
        """Where the other one differs, line by line; empty if it does not."""
        mine, its = (pprint.pformat(end, width=110).splitlines() for end in (self, other))
        lines = difflib.unified_diff(mine, its, "undisturbed", "after the crash", lineterm="", n=2)
        return "\n".join(line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…" for line in lines)


async def read_ends(store: Store, *, names: Collection[str], chance: Collection[str] = ()) -> dict[str, End]:
    """The ends of the scenarios of these names that share this store, each without its name; of the whole store for
    the name `""`. `chance` names steps whose arguments or results are other ones in every life."""
    threads, runs = await _threads(store), await _runs(store)
    return {
        name: await _Reader(store, name, VERBS_OF_CHANCE.union(chance)).end(
            [thread for thread in threads if _belongs(thread.thread_id, name)],
            [run for run in runs if _belongs(run.thread_id, name)],
        )
        for name in names
    }


class _Reader:
    """Reads the end of one scenario."""

    def __init__(self, store: Store, name: str, chance: Collection[str]) -> None:
        self._store = store
        self._name = name
        self._chance = chance
        self._places: dict[str, int] = {}

    async def end(self, threads: list[Thread], runs: list[Run]) -> End:
        self._places = {str(run.id): place for place, run in enumerate(sorted(runs, key=lambda run: run.id), start=1)}
        found = [await self._thread(thread, [run for run in runs if run.thread == thread.id]) for thread in threads]
        return End(tuple(sorted(found, key=lambda thread: thread.thread_id)))

    async def _thread(self, thread: Thread, runs: list[Run]) -> ThreadEnd:
        runs = sorted(runs, key=lambda run: run.ordinal)
        ordinals = {run.id: run.ordinal for run in runs}
        newest = (None if thread.snapshot_run is None else ordinals[thread.snapshot_run], thread.snapshot_step)
        mail = await self._store.mailbox(thread.id, limit=LIST_ROWS_MAX)
        dead = await self._store.dead_letters(thread.id, limit=LIST_ROWS_MAX)
        return ThreadEnd(
            self._text(thread.thread_id), thread.agent, thread.head is not None, thread.depth, newest,
            tuple([await self._run(run) for run in runs]), tuple(map(self._letter, mail)),
            tuple(map(self._letter, dead)),
        )  # fmt: skip

    async def _run(self, run: Run) -> RunEnd:
        log = [await self._entry(run, row) for row in await _log(self._store, run)]
        waits = await self._store.waits([run.id])
        return RunEnd(
            run.ordinal, run.agent, self._text(run.queue), None if run.key is None else self._text(run.key),
            run.state.value, run.ready, self._text(run.reason or "") or None, run.super_step, run.worker is not None,
            tuple(sorted(log, key=lambda entry: (entry.super_step, entry.kind, entry.key))),
            self._text(run.cancel or "") or None, None if run.parent is None else self._places.get(str(run.parent)),
            tuple((self._text(wait.key), wait.kind.name.lower()) for wait in waits), await self._questions(run),
            await self._meters(run), await self._deliveries(run),
        )  # fmt: skip

    async def _meters(self, run: Run) -> tuple[tuple[int, str, int, str, int], ...]:
        rows = await self._store.meters(run.id, limit=LIST_ROWS_MAX)
        return tuple((row.super_step, row.key, row.attempt, row.name, row.quantity) for row in rows)

    async def _deliveries(self, run: Run) -> tuple[Handed, ...]:
        rows = await self._store.deliveries(DeliveryFilter(run=run.id, limit=LIST_ROWS_MAX))
        return tuple(
            [
                Handed(
                    row.sink, self._text(row.partition), row.bill, row.state.value,
                    row.payload if row.bill else await self._plain(run, row.payload),
                )
                for row in sorted(rows, key=lambda row: (row.sink, row.partition, row.seq))
            ]
        )  # fmt: skip

    async def _questions(self, run: Run) -> tuple[Asked, ...]:
        rows = await self._store.interrupts(InterruptFilter(state=None, run=run.id, limit=LIST_ROWS_MAX))
        asked = [
            Asked(
                row.super_step, self._text(row.key), row.name, row.state.value,
                # What a budget has left depends on what crashes have cut short.
                None if row.name == "budget" else await self._plain(run, row.payload),
                None if row.answer is None else await self._plain(run, row.answer), row.answered_by,
            )
            for row in rows
        ]  # fmt: skip
        return tuple(sorted(asked, key=lambda each: (each.super_step, each.key)))

    def _letter(self, message: Message) -> tuple[str, str, bytes]:
        return self._text(message.sender), message.label, message.payload

    async def _entry(self, run: Run, row: Checkpoint) -> Entry:
        key, digest, value = self._text(row.key), row.digest, await self._value(run, row)
        name = row.key.rpartition("/")[2].partition("#")[0]
        if name in self._chance or name.startswith("deliver:"):  # which returns a key, and is compared as a delivery
            digest, value = 0, "by chance"
        if name.startswith(GIVEN_IDS):
            digest = 0
        if name.startswith("start:") and not row.failed:
            value = [self._places.get(str(value[0])), self._text(value[1])]
        state = None if row.state is None else (await load_state(self._store, run.thread, row.state))[0]
        recorded = (_encode(value), _encode(state))
        return Entry(row.super_step, key, row.kind.name.lower(), digest, row.failed, value, state, recorded)

    async def _plain(self, run: Run, payload: bytes) -> Any:
        return codec_for(Any).decode(await load_payload(self._store, run.thread, payload))

    async def _value(self, run: Run, row: Checkpoint) -> Any:
        if not row.failed:
            return await self._plain(run, row.payload)
        payload = await load_payload(self._store, run.thread, row.payload)
        error = decode_error(payload)
        return [error.type, self._text(error.message), *map(self._text, error.failed_keys)]

    def _text(self, text: str) -> str:
        """A text without the scenario's name and the ids of questions, and with places for run ids."""
        if self._name:
            text = text.replace(self._name, "…")
        text = BUDGET_PLACE.sub("~a budget$", QUESTION_ID.sub("a question", text))
        return RUN_ID.sub(lambda found: f"run {self._places.get(found[1], found[0])}", text)


def _belongs(thread_id: str, name: str) -> bool:
    return not name or thread_id == name or thread_id.startswith(name + "/")


async def _threads(store: Store) -> list[Thread]:
    found: list[Thread] = []
    while True:
        page = await store.list_threads(limit=LIST_ROWS_MAX, after=found[-1].id if found else None)
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found


async def _runs(store: Store) -> list[Run]:
    found: list[Run] = []
    while True:
        page = await store.list_runs(RunFilter(limit=LIST_ROWS_MAX, after=found[-1].id if found else None))
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found


async def _log(store: Store, run: Run) -> list[Checkpoint]:
    found: list[Checkpoint] = []
    while True:
        after = (found[-1].super_step, found[-1].seq) if found else None
        page = await store.checkpoints(run.id, limit=LIST_ROWS_MAX, after=after)
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found
