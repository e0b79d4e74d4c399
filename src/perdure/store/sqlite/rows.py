"""Rows of the shared statements as records; the columns bear the records' field names, in their order."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core.records import Attempt, Checkpoint, Kind, Outcome, Run, RunState, Thread, Worker, WorkerState
from perdure.store.sqlite.transaction import Shape

_KINDS: Final = tuple(Kind)
_tags: Final = msgspec.json.Decoder(tuple[str, ...]).decode


def blob(text: str | None) -> bytes | None:
    """A blob that travelled as hex."""
    return None if text is None else bytes.fromhex(text)


def _run(row: list[Any]) -> Run:
    row[7] = RunState(row[7])
    row[10] = bool(row[10])
    row[21] = _tags(row[21])
    return Run(*row)


def _checkpoint(row: list[Any]) -> Checkpoint:
    row[3] = _KINDS[row[3]]
    row[9] = bool(row[9])
    row[10] = bytes.fromhex(row[10])
    row[11] = blob(row[11])
    return Checkpoint(*row)


def _attempt(row: list[Any]) -> Attempt:
    row[5] = blob(row[5])
    return Attempt(*row)


def _outcome(row: list[Any]) -> Outcome:
    run, failed, payload = row
    return Outcome(run, bool(failed), bytes.fromhex(payload))


def _worker(row: list[Any]) -> Worker:
    row[5] = WorkerState(row[5])
    row[6] = bool(row[6])
    row[7] = bool(row[7])
    return Worker(*row)


RUN: Final = Shape(Run.__struct_fields__, frozenset(), _run)
CHECKPOINT: Final = Shape(Checkpoint.__struct_fields__, frozenset({"payload", "state"}), _checkpoint)
ATTEMPT: Final = Shape(Attempt.__struct_fields__, frozenset({"error"}), _attempt)
OUTCOME: Final = Shape(Outcome.__struct_fields__, frozenset({"payload"}), _outcome)
THREAD: Final = Shape(Thread.__struct_fields__, frozenset(), lambda row: Thread(*row))
WORKER: Final = Shape(Worker.__struct_fields__, frozenset(), _worker)
