"""Attendance: the session lock by which a worker's death shows before its lease ends.

The lock is held by the database session of one connection and goes free the moment the server sees that connection
end. Behind a pooler the session is somebody else's; so the lock is asked for in one query and looked for in a second,
which must meet the same backend. A lost connection does not mean a dead worker: the next renewal attends again, and
who looks for silent workers looks twice. After the server itself started, nobody's lock is there, and nobody is
silent until the living had time to come back.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

import asyncpg

from perdure import telemetry
from perdure.errors import StoreError
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import WORKER_TIMEOUT_S, Line, Pool
from perdure.store.postgres.listener import PAUSE_MAX_S, PAUSE_MIN_S
from perdure.store.sql import Statements

RESTART_GRACE_S: Final = 5.0
"""How long after the server's start an absent lock means nothing."""


class Attendance:
    """The locks of this store's workers, and a look at everybody's."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address = address
        self._statements = statements
        self._line = Line(address, timeout_s=WORKER_TIMEOUT_S)
        self._held: dict[int, asyncpg.Connection[Any]] = {}
        self._again: asyncio.Task[None] | None = None

    async def attend(self, worker: int) -> bool:
        """Hold the worker's lock, and say so in its row; False where no lock can be held."""
        if self._address.pooled:
            return False
        key = lock_key(self._address.schema, worker)
        asked = await self._line.fetchrow(self._statements["take_session_lock"].text, key)
        look = self._statements["holds_session_lock"]
        held: bool = await self._line.fetchval(look.text, *look.arguments({"key": key, "pid": asked["pid"]}))
        connection = self._line.connection
        if not asked["taken"] or not held or connection is None:
            return False
        await self._line.fetchval(self._statements["set_session"].text, worker)
        self._held[worker] = connection
        connection.add_termination_listener(self._lost)
        return True

    def _lost(self, connection: object) -> None:
        """The session has ended, and with it the lock: attend again at once, before somebody looks twice."""
        if connection in self._held.values() and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._attend_again(), name="perdure-attendance")

    async def _attend_again(self) -> None:
        """Until every lock is held again, or given up; also while the server restarts."""
        pause_s = PAUSE_MIN_S
        try:
            while any(each.is_closed() for each in self._held.values()):
                try:
                    for worker in list(self._held):
                        await self.resume(worker)
                except StoreError as error:
                    telemetry.emit("attendance.lost", url=self._address.public, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        finally:
            self._again = None

    async def resume(self, worker: int) -> None:
        """Attend again, if this worker attended on a connection that was lost."""
        if worker in self._held and self._held[worker] is not self._line.connection:
            await self.attend(worker)

    async def silent_workers(self, pool: Pool) -> list[int]:
        """Alive workers that attended and whose lock is free now."""
        look = self._statements["attendance"]
        found = await pool.fetchrow(look.text, *look.arguments({"grace_us": int(RESTART_GRACE_S * 1_000_000)}))
        if not found["settled"]:
            return []
        held, schema = set(found["held"]), self._address.schema
        return sorted(worker for worker in found["workers"] if lock_key(schema, worker) not in held)

    async def close(self) -> None:
        """Let go of the locks."""
        self._held.clear()
        if self._again is not None:
            self._again.cancel()
        await self._line.close()

    def abandon(self) -> None:
        """The same without the loop, which has closed, and whose tasks have ended with it."""
        self._held.clear()
        self._again = None
        self._line.abandon()


def lock_key(schema: str, worker: int) -> int:
    """The number of a worker's advisory lock: a hash, since all schemas of a database share one space of numbers."""
    digest = hashlib.blake2b(f"perdure worker {schema} {worker}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
