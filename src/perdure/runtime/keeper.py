"""The keeper: a worker's lease, and the runs of workers that died.

It runs on a thread of its own, with its own event loop and its own connection to the store, so that a blocked event
loop or a busy commit connection does not cost the lease. Each tick it

- looks at the main loop (`watchdog.py`), and stops renewing while that is stalled for longer than the limit;
- renews the lease three times per lease, and extends the trust window by when it *asked*;
- takes over: workers whose lease has run out, and, without waiting for that, workers whose sign of life (a lock file,
  a session lock) is gone in two looks `DEATH_GRACE_S` apart. Any worker does this, continuously; there is no leader,
  and fences make a needless take-over harmless.

When a renewal says that this worker has been taken over, the keeper tells the loop and ends: that identity never
writes again.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.clock import Clock
from perdure.core.leases import renew_every_s, trust_until
from perdure.core.records import TakenOver, run_id, worker_id
from perdure.errors import StoreError
from perdure.runtime.patience import insist
from perdure.runtime.service import serve, undisturbed
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.trust import Trust
from perdure.runtime.watchdog import Watchdog
from perdure.store.protocol import Store
from perdure.telemetry import emit, logger

TICK_S = 0.2
LOOK_S = 0.4
"""Between two looks for silent workers while there are none; once there is one, every tick looks."""
SWEEP_S = 1.0
"""Between two looks for leases that have run out (more often where leases are very short)."""
DEATH_GRACE_S = 0.3
"""A sign of life must be missing for this long: a connection that is being replaced is not a death."""


class Keeper:
    """Keeps one worker identity's lease, and takes over from the dead."""

    def __init__(
        self, store: Store, worker: int, *, settings: WorkerSettings, trust: Trust, watchdog: Watchdog, clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:  # fmt: skip
        self.store = store
        self.worker = worker
        self.settings = settings
        self.trust = trust
        self.watchdog = watchdog
        self.clock = clock
        self.lost = False
        self.on_lost = on_lost
        self._renewed_at = clock.monotonic()
        self._swept_at = clock.monotonic()
        self._looked_at = clock.monotonic()
        self._silent_since: dict[int, float] = {}
        self._attends = False

    async def run(self) -> None:
        """Keep the lease until cancelled, or until it is lost. Whatever else ends this loses it: a worker whose lease
        nobody keeps must not go on."""
        try:
            await insist("keeper", self.open)
            await serve("keeper", self._tick)
        except _Lost:
            pass
        except Exception as error:
            logger.error("worker %s: its lease cannot be kept", worker_id(self.worker), exc_info=error)
            self.on_lost()
        finally:
            await undisturbed(self._let_go())

    async def open(self) -> None:
        """Connect, and make this worker's death visible where the store can."""
        await self.store.open()
        self._attends = await self.store.attend(self.worker)

    async def tick(self) -> float:
        """One round; returns the seconds until the next."""
        self.watchdog.look()
        await self._renew()
        if not self.lost:
            await self._take_over()
        return TICK_S

    async def _tick(self) -> float:
        pause_s = await self.tick()
        if self.lost:
            raise _Lost
        return pause_s

    async def _let_go(self) -> None:
        try:
            await self.store.close()
        except StoreError as error:
            emit("service.failed", service="keeper", error=str(error))

    async def _renew(self) -> None:
        asked_at = self.clock.monotonic()
        if self.watchdog.stalled or asked_at - self._renewed_at < renew_every_s(self.settings.lease_s):
            return
        if await self.store.renew(self.worker, int(self.settings.lease_s * 1_000_000)):
            self._renewed_at = asked_at
            self.trust.extend(trust_until(asked_at, self.settings.lease_s))
        else:
            self.lost = True
            self.on_lost()

    async def _take_over(self) -> None:
        now = self.clock.monotonic()
        if self._silent_since or now - self._looked_at >= LOOK_S:
            self._looked_at = now
            silent = await self.store.silent_workers()
            known = self._silent_since
            self._silent_since = {worker: known.get(worker, now) for worker in silent if worker != self.worker}
        dead = [worker for worker, since in self._silent_since.items() if now - since >= DEATH_GRACE_S]
        if not dead and now - self._swept_at < min(SWEEP_S, renew_every_s(self.settings.lease_s)):
            return
        self._swept_at = now
        for taken in await self.store.take_over(dead, recoveries_max=self.settings.recoveries_max):
            report(taken)


class _Lost(BaseException):
    """The identity is lost: leave the loop."""


def report(taken: TakenOver) -> None:
    """Say what a take-over did."""
    emit("worker.taken_over", worker=worker_id(taken.worker), requeued=len(taken.requeued), held=len(taken.held))
    for run in taken.held:
        emit("run.held", run=run_id(run), reason="poison", detail="it kept killing its workers")
