"""The reads: one statement each, on the client's connections."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from perdure.core.effects import Effect, EffectEvent, EffectFilter
from perdure.core.records import Attempt, Checkpoint, Outcome, Run, Thread, Worker
from perdure.core.requests import RunFilter
from perdure.errors import StoreError
from perdure.store.pages import page_size
from perdure.store.postgres import rows, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Pool

ID_MAX: Final = 2**63 - 1
STEP_MAX: Final = 2**31 - 1
SKEW_S_MAX: Final = 5.0
"""Past this, times in a timeline mislead; leases and due times do not care."""
COMMIT_MS_MAX: Final = 50.0
CONNECTIONS_USED_MAX: Final = 0.8

Check = tuple[str, bool, str]


class Reader:
    """What the store reads for clients and operators."""

    def __init__(self, address: Address, pool: Pool) -> None:
        self._address = address
        self._pool = pool
        self._statements = schema.statements(address.prefix)

    async def _fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._pool.fetch(statement.text, *statement.arguments(values))

    async def workers(self, *, alive: bool) -> list[Worker]:
        return [rows.to_worker(row) for row in await self._fetch("workers", alive=alive)]

    async def get_runs(self, runs: Sequence[int]) -> list[Run]:
        return [rows.to_run(row) for row in await self._fetch("get_runs", runs=list(runs))]

    async def list_runs(self, where: RunFilter) -> list[Run]:
        values: dict[str, Any] = {
            "before": ID_MAX if where.after is None else where.after,
            "state": where.state and where.state.value,
            "agent": where.agent,
            "tenant": where.tenant,
            "tags": list(where.tags),
            "parent": where.parent,
            "limit": page_size(where.limit),
        }
        if where.thread_id is not None:
            found = await self._fetch("list_thread_runs", thread_id=where.thread_id, **values)
        else:
            found = await self._fetch("list_runs", **values)
        return [rows.to_run(row) for row in found]

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        return [rows.to_outcome(row) for row in await self._fetch("outcomes", runs=list(runs))]

    async def get_thread(self, thread_id: str) -> Thread | None:
        found = await self._fetch("get_thread", thread_id=thread_id)
        return rows.to_thread(found[0]) if found else None

    async def list_threads(self, *, agent: str | None, limit: int, after: int | None) -> list[Thread]:
        before = ID_MAX if after is None else after
        found = await self._fetch("list_threads", agent=agent, limit=page_size(limit), before=before)
        return [rows.to_thread(row) for row in found]

    async def checkpoints(
        self, run: int, *, super_step: int | None, boundaries: bool, limit: int, after: tuple[int, int] | None
    ) -> list[Checkpoint]:
        after_step, after_seq = after or (-1, -1)
        found = await self._fetch(
            "checkpoints",
            run=run,
            step_min=0 if super_step is None else super_step,
            step_max=STEP_MAX if super_step is None else super_step,
            kind_min=1 if boundaries else 0,
            after_step=after_step,
            after_seq=after_seq,
            limit=page_size(limit),
        )
        return [rows.to_checkpoint(row) for row in found]

    async def thread_checkpoints(self, thread: int, *, limit: int, after: tuple[int, int] | None) -> list[Checkpoint]:
        before_run, before_step = after or (None, STEP_MAX)
        values = {"thread": thread, "before_run": before_run, "before_step": before_step}
        found = await self._fetch("thread_checkpoints", limit=page_size(limit), **values)
        return [rows.to_checkpoint(row) for row in found]

    async def attempts(self, run: int) -> list[Attempt]:
        return [rows.to_attempt(row) for row in await self._fetch("attempts", run=run)]

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = await self._fetch("blobs", thread=thread, digests=list(digests))
        return {row["digest"]: row["data"] for row in found}

    async def effects(self, where: EffectFilter) -> list[Effect]:
        values: dict[str, Any] = {
            "after": -1 if where.after is None else where.after,
            "state": where.state and where.state.value,
            "agent": where.agent,
            "name": where.name,
            "tenant": where.tenant,
            "undoable": where.undoable,
            "limit": page_size(where.limit),
        }
        if where.run is None and where.thread_id is None:
            found = await self._fetch("effects", **values)
        else:
            found = await self._fetch("effects_of", run=where.run, thread_id=where.thread_id, **values)
        return [rows.to_effect(row) for row in found]

    async def get_effects(self, effects: Sequence[int]) -> list[Effect]:
        return [rows.to_effect(row) for row in await self._fetch("get_effects", effects=list(effects))]

    async def effect_events(self, effect: int) -> list[EffectEvent]:
        return [rows.to_effect_event(row) for row in await self._fetch("effect_events", effect=effect)]

    async def diagnose(self) -> list[Check]:
        """What the doctor says; a server that cannot be reached is a finding too."""
        started = time.perf_counter()
        try:
            async with self._pool.line() as line:
                now_us = await line.fetchval(self._statements["now_us"].text)
                skew_s = abs(time.time() - now_us / 1e6)
                started = time.perf_counter()
                found = await line.fetchrow(self._statements["settings"].text)
                trip_ms = (time.perf_counter() - started) * 1e3
                started = time.perf_counter()
                await line.fetch(self._statements["write_nothing"].text)
                commit_ms = (time.perf_counter() - started) * 1e3
                version = await schema.check(line, self._address)
        except StoreError as error:
            return [("connection", False, str(error))]
        return [
            ("connection", True, f"{self._address.public}, Postgres {found['server']}, {trip_ms:.1f} ms a round trip"),
            ("schema", True, f"version {version} in {self._address.schema}"),
            *_check_durability(found),
            _check_isolation(found),
            ("commit", commit_ms <= COMMIT_MS_MAX, f"{commit_ms:.1f} ms"),
            ("clock", skew_s <= SKEW_S_MAX, f"{skew_s:.1f} s from this machine's; the server's decides"),
            _check_connections(found),
        ]


def _check_durability(found: Any) -> list[Check]:
    remedy = "off: a crash can lose what was committed; set it to on"
    names = ("fsync", "full_page_writes", "synchronous_commit")
    return [(name, found[name] != "off", remedy if found[name] == "off" else found[name]) for name in names]


def _check_isolation(found: Any) -> Check:
    well = found["isolation"] == "read committed"
    return ("isolation", well, found["isolation"] + ("" if well else "; perdure's user needs read committed"))


def _check_connections(found: Any) -> Check:
    used, most = found["connections"], found["connections_max"]
    well = used <= CONNECTIONS_USED_MAX * most
    remedy = "" if well else "; raise max_connections or put a pooler in between"
    return ("connections", well, f"{used} of {most} in use{remedy}")
