"""Reading: each of these is one statement on the reader's connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core.records import Attempt, Checkpoint, Kind, Outcome, Run, Thread, Worker
from perdure.core.requests import RunFilter
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.transaction import Reader, encode

ID_MAX: Final = 2**63 - 1
"""Past every id, super-step and seq: where a page without `after` begins or ends."""


def get_runs(reader: Reader, runs: Sequence[int]) -> list[Run]:
    return reader.records("get_runs", rows.RUN, runs=encode(list(runs)))


def list_runs(reader: Reader, where: RunFilter) -> list[Run]:
    values: dict[str, Any] = {
        "state": where.state,
        "agent": where.agent,
        "tenant": where.tenant,
        "tags": msgspec.json.encode(where.tags).decode(),
        "limit": page_size(where.limit),
        "before": _before(where.after),
    }
    if where.parent is not None:
        parent = {"parent": where.parent, "thread_id": where.thread_id}
        return reader.records("list_children", rows.RUN, **values, **parent)
    if where.thread_id is None:
        return reader.records("list_runs", rows.RUN, **values)
    return reader.records("list_thread_runs", rows.RUN, thread_id=where.thread_id, **values)


def outcomes(reader: Reader, runs: Sequence[int]) -> list[Outcome]:
    return reader.records("outcomes", rows.OUTCOME, runs=encode(list(runs)))


def get_thread(reader: Reader, thread_id: str) -> Thread | None:
    found = reader.records("get_thread", rows.THREAD, thread_id=thread_id)
    return found[0] if found else None


def list_threads(reader: Reader, *, agent: str | None, limit: int, after: int | None) -> list[Thread]:
    return reader.records("list_threads", rows.THREAD, agent=agent, limit=page_size(limit), before=_before(after))


def checkpoints(
    reader: Reader,
    run: int,
    *,
    super_step: int | None,
    boundaries: bool,
    limit: int,
    after: tuple[int, int] | None,
) -> list[Checkpoint]:
    after_step, after_seq = after or (-1, -1)
    values = {
        "step_min": 0 if super_step is None else super_step,
        "step_max": ID_MAX if super_step is None else super_step,
        "kind_min": int(Kind.BOUNDARY if boundaries else Kind.STEP),
        "after_step": after_step,
        "after_seq": after_seq,
    }
    return reader.records("checkpoints", rows.CHECKPOINT, run=run, limit=page_size(limit), **values)


def thread_checkpoints(reader: Reader, thread: int, *, limit: int, after: tuple[int, int] | None) -> list[Checkpoint]:
    run, step = after or (None, ID_MAX)
    values = {"thread": thread, "limit": page_size(limit), "before_run": run, "before_step": step}
    return reader.records("thread_checkpoints", rows.CHECKPOINT, **values)


def attempts(reader: Reader, run: int) -> list[Attempt]:
    return reader.records("attempts", rows.ATTEMPT, run=run)


def blobs(reader: Reader, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Row by row, unlike the others: a blob may be 64 MiB, and twice that as hex."""
    found: dict[bytes, bytes] = {}
    for cursor in reader.spread("blobs", [(thread, digest) for digest in set(digests)]):
        found |= dict(cursor.fetchall())
    return found


def workers(reader: Reader, *, alive: bool) -> list[Worker]:
    return reader.records("workers", rows.WORKER, alive=alive)


def _before(after: int | None) -> int:
    return ID_MAX if after is None else after
