"""The ledger of effects, after a worker has written it: what a person has found out about them, and reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from perdure.core.effects import RESOLVED, Effect, EffectEvent, EffectFilter, EffectState, Resolution
from perdure.core.limits import INLINE_BYTES_MAX, MIB
from perdure.core.records import Blob, RunState
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.effects import Effects
from perdure.store.sqlite.transaction import Reader, Transaction, encode

OPEN: Final = frozenset({EffectState.INTENDED, EffectState.UNKNOWN, EffectState.UNDOING, EffectState.UNDO_FAILED})
"""What somebody may have to see to, and what lies in an index of its own. (An unknown one may be written down as
`intended`.)"""

AT_REST: Final = frozenset({RunState.HELD, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
"""The states of a run at whose effects no worker is."""

CLAIMED_A_READ: Final = 64 * MIB // (2 * INLINE_BYTES_MAX)
"""Effects in one answer, each with arguments and an outcome. They travel as hex, and a text has its limit."""


def resolve(tx: Transaction, found: Resolution, blobs: Sequence[Blob]) -> Effect | None:
    """Set what a person has found out about an effect."""
    effect = _get(tx, found.effect)
    if effect is None or found.state not in RESOLVED.get(effect.state, ()):
        return effect
    (run,) = tx.records("get_runs", rows.RUN, runs=encode([effect.run]))
    if run.state not in AT_REST:
        return effect
    written = Effects(tx, None, ())
    written.read([effect.id])
    written.move(written.entries[effect.id], found.state, found.outcome, by=found.by, note=found.note)
    written.write()
    tx.write("put_blobs", [(effect.thread, blob.digest, blob.data) for blob in blobs])
    return _get(tx, effect.id)


def _get(tx: Transaction, effect: int) -> Effect | None:
    found = get_effects(tx, [effect])
    return found[0] if found else None


def get_effects(reader: Reader, effects: Sequence[int]) -> list[Effect]:
    return reader.records("get_effects", rows.EFFECT, ids=encode(list(effects)))


def effect_events(reader: Reader, effect: int) -> list[EffectEvent]:
    return reader.records("effect_events", rows.EFFECT_EVENT, effect=effect)


def effects(reader: Reader, where: EffectFilter) -> list[Effect]:
    values: dict[str, Any] = {
        "state": where.state,
        "agent": where.agent,
        "name": where.name,
        "tenant": where.tenant,
        "undoable": where.undoable,
        "limit": page_size(where.limit),
        "after": where.after or 0,
    }
    if where.run is not None or where.thread_id is not None:
        place = {"run": where.run, "thread_id": where.thread_id}
        return reader.records("list_run_effects", rows.EFFECT, **values, **place)
    if where.state in OPEN:
        return reader.records("list_open_effects", rows.EFFECT, **values)
    return reader.records("list_effects", rows.EFFECT, **values)


def claimed_effects(tx: Transaction, runs: Sequence[int]) -> Iterator[Effect]:
    """The effects of these runs' current super-steps, by run and key, in reads of a bounded size."""
    after = {"after_run": 0, "after_key": ""}
    while True:
        page = tx.records("claimed_effects", rows.EFFECT, runs=encode(list(runs)), limit=CLAIMED_A_READ, **after)
        yield from page
        if len(page) < CLAIMED_A_READ:
            return
        after = {"after_run": page[-1].run, "after_key": page[-1].key}
