"""The store in memory, broken where runs begin and end: starts, threads, states, blobs, and what a person sends on."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.records import Kind
from perdure.core.requests import Started
from perdure.store.memory import starts
from perdure.store.memory.tables import Tables
from tests.simulation.breaking import Mutation, replaced, wrapped


def _without_its_key(original: Any, tables: Any, ask: Any, now: int) -> Any:
    return original(tables, msgspec.structs.replace(ask, key=None), now)


def _for_any_input(original: Any, tables: Any, ask: Any, now: int) -> Any:
    known = tables.started.get(ask.key)
    return original(tables, ask if known is None else msgspec.structs.replace(ask, digest=known[1]), now)


def _once_more(original: Any, tables: Any, ask: Any, now: int) -> Any:
    if ask.id in tables.runs and ask.key is None:
        return original(tables, msgspec.structs.replace(ask, id=ask.id + 1_000_000), now)
    return original(tables, ask, now)


def _never_joined(original: Any, thread: Any, ask: Any) -> Any:
    answer = original(thread, ask)
    return None if isinstance(answer, Started) else answer


def _never_rejected(original: Any, thread: Any, ask: Any) -> Any:
    answer = original(thread, ask)
    return answer if isinstance(answer, Started) else None


def _left_without_a_word(tables: Any, run: Any) -> None:
    tables.order[run.thread].remove((run.ordinal, run.id))


def _only_once(original: Any, tables: Any, thread: int, run: int, super_step: int) -> None:
    if super_step == 2:
        original(tables, thread, run, super_step)


def _all_dropped(tables: Any, run: Any, keys: Any) -> None:
    log = tables.checkpoints[run.id]
    for at in [at for at, row in log.items() if at[0] == run.super_step and row.kind is Kind.STEP]:
        del log[at]


def _nothing(*args: Any) -> None:
    """What is called does nothing."""


THREADS = (
    Mutation("A start key is forgotten", "start of", wrapped(starts, "start", _without_its_key)),
    Mutation("A start key stands for any input", "start of", wrapped(starts, "start", _for_any_input)),
    Mutation("A start that comes twice is two runs", "start of", wrapped(starts, "start", _once_more)),
    Mutation("Joining a busy thread starts a run", "join", wrapped(starts, "_refuse", _never_joined)),
    Mutation("A busy thread rejects nothing", "reject", wrapped(starts, "_refuse", _never_rejected)),
    Mutation("A thread's next run is forgotten", "head", replaced(Tables, "leave", _left_without_a_word)),
    Mutation("The newest state is not pointed to", "snapshot", wrapped(Tables, "point", _only_once)),
    Mutation("Blobs are forgotten", "blobs are not", replaced(Tables, "put_blobs", _nothing)),
    Mutation(
        "A run is sent on and undoes later ones",
        "not to be sent on",
        replaced(Tables, "would_undo", lambda tables, run: False),
    ),
    Mutation("Sending on keeps the failures", "180 s after", replaced(Tables, "drop_failures", _nothing)),
    Mutation("Sending on forgets successes too", "vanished", replaced(Tables, "drop_failures", _all_dropped)),
    Mutation("Tries that were cut short are kept", "cut short", replaced(Tables, "forget_unfinished_tries", _nothing)),
)
