"""The store: what perdure remembers, behind a few verbs.

A store keeps workers, threads, runs, checkpoints, tries and blobs, and it alone decides who may write: it locks,
compares fences and reads its own clock. It never decodes a payload. Three exist: `memory` (the reference meaning,
for tests), `sqlite` (one file, several processes) and `postgres` (a fleet); a store is right when it passes
`perdure.testing.conformance`.

**Ownership.** A worker's row is the lock. `commit` and `claim` hold it in share mode and see it `alive`; `take_over`
holds it exclusively, marks it dead, and only then re-queues its runs under higher fences. So a commit is either
wholly before a take-over, and counts, or wholly after it, and finds the worker dead. A lease that has run out
only makes a worker *eligible* for take-over; until somebody does, the worker still is the only writer and may renew.
Fences only grow: every claim and every take-over adds one.

**Failure.** A verb that cannot reach the database raises `StoreUnavailable`; its effect is then unknown, and every
writing verb may be repeated with the same values (`start` recognises its run ids, `commit` its fences, `take_over`
and `retire` a finished row). Nothing inside a store retries for ever; the caller's loops do.

**Waits.** A run that only waits is parked: `waiting`, without a worker. What it waits for are rows (`Wait`), and what
ends a wait is a row too: an answered interrupt, a message, an ended run; or a time. Whoever writes such a row looks, in
the same transaction, whether a parked run waits for it, and wakes it (`queued`, claimable now); a parking looks, in its
transaction, whether something that the run waits for is there already. The two share a lock (the run's row, and for
messages the mailbox's thread's row), so that one of them sees the other: no wake-up is lost. A time needs nobody: a
waiting run is claimable from its `ready_at` on. A woken run stays `queued` until it is claimed; nobody is woken twice
for one thing, since a wait is deleted together with the record that ends it. Where a batch parks a run and brings what
it waits for, in either order, the run is not parked or is woken. A wait whose step is on record, or whose super-step is
over, is not opened: that is a batch sent again.

**Cancellation.** `cancel` ends a run that has not begun, or that is held, at once. Of any other it notes the request on
the row, which nobody takes back: from then on the run can end as `cancelled` only. Its worker is told (`Hint.WAKE`,
`cancellations`, every `CommitOutcome`), lets the code clean up, and writes the end.

**Effects.** What acts on the outside world has a row (`core/effects.py`), written before the act and after it, each
time under the guard of a commit, and each write with an event beside it. An intent is one of the few changes whose
worker waits for its answer before it goes on. Where a run's claim is over, its open intents are read as `unknown`.

**The outbox.** What a run hands over is a row, written with the step that asked for it (`core/deliveries.py`); a bill
is one that the end of its run writes, whoever ends it. Rows of a lane are numbered and given their turn under the lock
of that lane, which is taken after those of runs. A worker's relay claims them as it claims runs, and loses them with
its row.

**Budgets.** `Reserve` and what settles it change a budget under the lock of its row, which comes last. A question about
a budget is asked under that lock too, and whoever sets the budget withdraws such questions: one of them sees the other.

**Loops.** An open store belongs to the event loop that opened it. `clone()` gives an unopened store on the same
data for another loop or thread: the renewal thread has its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Literal, Protocol, runtime_checkable

from perdure.core.budgets import BudgetFilter, BudgetRow, NewBudget
from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome, Place
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, Settlement
from perdure.core.effects import Effect, EffectEvent, EffectFilter, Resolution
from perdure.core.meters import MeterRow, UsageFilter, UsageRow
from perdure.core.records import (
    Attempt,
    Blob,
    Checkpoint,
    Claimed,
    Interrupt,
    Message,
    Outcome,
    Run,
    TakenOver,
    Thread,
    Wait,
    Worker,
)
from perdure.core.requests import (
    AnswerOutcome,
    ClaimRequest,
    ForkRun,
    InterruptFilter,
    NewAnswer,
    NewMessage,
    NewWorker,
    RunFilter,
    SendOutcome,
    StartOutcome,
    StartRun,
)


class Hint(Enum):
    """A wake-up: something may have changed, look again. Hints can be lost, late or spurious; rows decide (G8)."""

    WORK = "work"
    """A run became claimable."""
    ENDED = "ended"
    """A watched run became terminal or held."""
    WAKE = "wake"
    """Something that a *running* run may wait for has come, or its cancellation was requested."""
    DELIVER = "deliver"
    """A delivery became claimable."""


class Transaction(Protocol):
    """The user's own SQL, in the transaction that records their step. Parameters are written as the database writes
    them: `$1` on Postgres, `?` on SQLite. Errors are the driver's. It begins and ends with the function that it is
    given to, and not by SQL: that, and any use after its end, is a `UsageError`. Nothing that it tells its session
    outlasts it."""

    @property
    def dialect(self) -> Literal["postgresql", "sqlite"]:
        """Which SQL it speaks."""

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement; returns how many rows it changed (0 where that does not apply)."""

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of these rows of parameters."""

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """All rows, by column."""

    async def fetch_row(self, sql: str, *args: Any) -> dict[str, Any] | None:
        """The first row, or None."""

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        """The first column of the first row, or None."""


@runtime_checkable
class Store(Protocol):
    """The verbs every store has. All are coroutines on the loop that opened it, and safe to call concurrently."""

    @property
    def url(self) -> str:
        """Where the data lies, without a password: for messages and logs."""

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. A brand-new store is migrated at once; one with an older schema raises `SchemaOutdated`, one with
        a newer schema `SchemaAhead`."""

    async def close(self) -> None:
        """Let go of connections, threads and files. A closed store may be opened again; closing twice is fine."""

    def abandon(self) -> None:
        """What `close` does, as far as it goes without the loop that opened the store, because that has closed. Others
        see it end (`silent_workers`), and it may be opened again. On a store that is not open it does nothing."""

    def clone(self) -> Store:
        """An unopened store on the same data, for another event loop."""

    async def migrate(self) -> tuple[int, int]:
        """Bring the schema up to date, also on an unopened store. Returns the versions before and after; safe to run
        from several processes at once."""

    async def now_us(self) -> int:
        """The store's clock."""

    async def reserve_ids(self, count: int) -> int:
        """Reserve `count` consecutive ids nobody else will get; returns the first. Gaps are harmless."""

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        """Have `on_hint` called on this loop at each hint, from this process or another, until the returned function
        is called. A store whose listener lost its connection calls it once with each hint after it reconnects."""

    # -- workers ---------------------------------------------------------------------------------------------

    async def register(self, worker: NewWorker) -> None:
        """Insert the worker's row, `alive`, with a lease from now."""

    async def renew(self, worker: int, lease_us: int) -> bool:
        """Extend the lease from now. False if the row is no longer alive (or is unknown): this worker has been taken
        over and must never write again."""

    async def attend(self, worker: int) -> bool:
        """Make this worker's death visible without the lease, for as long as this open store lives (a lock file, a
        session lock); sets the row's `session`. False where that cannot be done: then the lease alone decides."""

    async def silent_workers(self) -> list[int]:
        """Alive workers with `session` whose sign of life is gone right now. One reading may be a blip (a connection
        being replaced); the caller asks twice before it believes. Empty for a while after the database restarted."""

    async def set_idle(self, worker: int, idle: bool) -> None:
        """Say that this worker waits for work, so that starters send it a `WORK` hint."""

    async def take_over(self, suspects: Iterable[int], *, recoveries_max: int) -> list[TakenOver]:
        """Declare dead every alive worker whose lease has run out, and those in `suspects` (known dead), and re-queue
        their runs.

        For each, in one transaction: lock the row exclusively (skip one that is locked), check again, mark it `dead`;
        its deliveries are `queued` again, claimable now (`DELIVER`), with `strikes + 1`;
        its running runs get `fence + 1`, `recoveries + 1`, no worker, and `strikes + 1`, or `strikes = 0` if the dead
        claim has recorded a checkpoint (a row of the run's current super-step with the run's fence). Then `queued`, in
        the place it had (`ready_at` stays), or `held` as `poison` at `strikes >= recoveries_max`, with the words of
        `reasons.poisoned`. Sends hints.
        """

    async def retire(self, worker: int) -> int:
        """End this worker's row (`stopped`) and give back what it still holds: `queued`, `fence + 1`, nothing counted;
        its deliveries too, claimable now. Returns how many runs were given back. No-op on a row that is not alive."""

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        """Give back every run that this alive worker's row owns and that is not in `keep`: `queued`, `fence + 1`,
        nothing counted; returns how many. A worker calls it after a claim whose answer was lost: it may own runs it
        never heard of.

        The lost claim may even be still on its way. So the row remembers the highest `ticket`, and a claim with a lower
        one takes nothing, as does a `give_back` with a lower one, which would take runs that were claimed since."""

    async def workers(self, *, alive: bool = True) -> list[Worker]:
        """Workers, oldest first, with the number of runs each holds; all of them with `alive=False`."""

    # -- starting --------------------------------------------------------------------------------------------

    async def start(self, starts: Sequence[StartRun]) -> list[StartOutcome]:
        """Put runs on disk, in one transaction; one outcome for each, in order.

        For each, in the order given: a run id that exists is `Started(created=True)` (a repeat of this very start). A
        parent whose row is not `running` under that worker and fence, or whose worker is not alive, is `ParentGone`; so
        is one whose cancellation was requested and that does not know of it. The check and the start exclude a
        take-over, as a commit does, and a cancellation of the parent: they hold its row. A key that exists answers
        `Started(created=False)` with its run if the digest is the same, else `KeyTaken`. A thread of another agent is
        `OtherAgent`. On a busy thread `join` gives `Started(created=False)` with the head (which its key, if any,
        stands for from then on), `reject` gives `ThreadHeld`, `enqueue` queues behind the others, or `ThreadHeld` at
        `THREAD_QUEUE_MAX`; `unless_asked` does the same, but is `QuestionOpen` where the head has an open interrupt
        (its oldest is named). `interrupt` and `rollback` request the cancellation of every unfinished run of the
        thread, as `cancel` does ("r9 was started in its place", with the new run's id), and queue behind what is left;
        `rollback` marks them. A new run is the thread's next ordinal, `queued`; on an idle thread it becomes the head
        and `ready`. It is claimable after its delay, or from its deadline on. Its arguments are filed as the boundary
        of super-step 1. A refused start writes nothing. Sends `WORK` if a worker is idle. Two groups that start
        overlapping keys or threads in opposite orders do not deadlock.
        """

    # -- executing -------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Take up to `limit` claimable runs, at most `CLAIM_ROWS_MAX`: `queued` or `waiting`, `ready`, due, of these
        agents and queues, not pinned to another deployment; highest priority first, then oldest `ready_at`, then id.

        Each becomes `running` under this worker with `fence + 1`, `attempt + 1`, pinned to the deployment; `started_at`
        is set the first time. The log is read in a later snapshot than the claim, so that it holds all that the
        previous owner committed, with the waits and the effects of the current super-step. Two workers never get the
        same run. Empty if the worker's row is not alive, or if the request comes too late (its ticket is below the
        row's, see `give_back`).
        """

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        """Apply a batch in one transaction; see `changes.py` for the two rules.

        A change that the database refuses fails alone, with its run's other changes in the batch (`refused`); the
        others are written. A checkpoint that exists under another fence is refused: a record never changes. Sends
        `ENDED` if a watched run ended or was held, `WORK` if a run became claimable.

        In one batch, what is said of a run after the end of its slice (`EndRun`, `RequeueRun`, `HoldRun`) finds it
        over, a no-op as in a batch of its own (`slices.py`); and of two checkpoints with one address the first is the
        record.

        A batch sent again after its run went on under another fence is a no-op if all that it says of the run are
        checkpoints on record under its own fence. Else the run is `lost`: whether a requeue or a try was written nobody
        can tell any more, and who sent it does not own the run. The same where a batch has changes of a run under two
        fences: the late ones make it `lost` as a whole, unless they are all on record.
        """

    async def waits(self, runs: Sequence[int], *, only_ready: bool = False) -> list[Wait]:
        """What these runs wait for, by run and key; whether it is `ready` by now. Or only what is."""

    async def cancellations(self, worker: int) -> dict[int, str]:
        """The runs in this worker's hands whose cancellation was requested, and why."""

    async def next_due(self) -> int | None:
        """How many microseconds until the time of the next waiting run comes, from now on; None if no such time is
        known. Whose run it is does not matter: an idle worker wakes for it."""

    # -- between runs ----------------------------------------------------------------------------------------

    async def cancel(self, run: int, reason: str, payload: bytes) -> Run | None:
        """Request a run's cancellation, and that of its unfinished descendants that are not detached (nor below one
        that is), in one transaction; returns the row afterwards, None if there is no such run.

        A terminal run, or one that is not held and whose cancellation was requested before, is returned unchanged, and
        nothing goes down from it; from any other it goes down also through runs that have ended. A run that nobody has
        begun (`attempt` 0) or that is held becomes `cancelled` at once, with `payload` (an encoded error) as its
        `ENDED` checkpoint, failed, under super-step `super_step + 1`; its waits are closed and its thread goes on as
        after `EndRun`. But one that is held and has undoable effects that are `done` or `undoing` is sent on (`queued`,
        claimable now, `strikes = 0`, its reason cleared) with `cancel` set and, as by `BeginUndo`, `cancelled` and
        `payload` as its end: a worker undoes them. Of a run that has begun, `cancel` is set; one that is `waiting` is
        woken, and one that is `queued` is claimable now. Sends hints.
        """

    async def answer(self, answer: NewAnswer) -> AnswerOutcome | None:
        """Answer an open interrupt, and wake its run if it is parked, in one transaction; None if there is no such
        interrupt. The first answer wins; one with the same bytes finds its own work done. One that has expired by the
        store's clock is marked so, and takes no answer."""

    async def interrupts(self, where: InterruptFilter) -> list[Interrupt]:
        """A page of interrupts, oldest id first. An open one whose time has come counts as expired."""

    async def get_interrupts(self, interrupts: Sequence[int]) -> list[Interrupt]:
        """These interrupts, by id; missing ones are left out."""

    async def send(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        """Put messages into mailboxes, in this order, and wake heads that wait for them, in one transaction; one
        outcome for each. One that has arrived is known by its id, and is `Sent` as before: also if it has been received
        since, for at least `MESSAGE_MEMORY_US`."""

    async def mailbox(self, thread: int, *, limit: int = 100, after: int = 0) -> list[Message]:
        """The messages in a thread's mailbox in order, from after that `seq`."""

    async def dead_letters(self, thread: int | None = None, *, limit: int = 100, after: int = 0) -> list[Message]:
        """Dead letters of a thread, or of all, by id, from after that one."""

    async def revive(self, message: int) -> Message | None:
        """Put a dead letter back at the end of its mailbox, also of a full one, and wake who waits for it; None if
        there is no such dead letter."""

    async def fork(self, fork: ForkRun) -> StartOutcome:
        """Put a run on a new thread on disk that goes on from a checkpoint of another; see `ForkRun`. `queued`, head of
        its thread, whose newest state is the one before `super_step` (none where that is None). Asked again with the
        same run id, it is `Started` as before."""

    # -- effects ---------------------------------------------------------------------------------------------

    async def effects(self, where: EffectFilter) -> list[Effect]:
        """A page of effects, oldest id first."""

    async def get_effects(self, effects: Sequence[int]) -> list[Effect]:
        """These effects, by id; missing ones are left out."""

    async def effect_events(self, effect: int) -> list[EffectEvent]:
        """What was written of an effect, in order."""

    async def resolve(self, resolution: Resolution, blobs: Sequence[Blob] = ()) -> Effect | None:
        """Set what a person has found out about an effect; returns the row as it is then, None if there is no such
        effect. It changes (and an event says so) only from the states that `effects.RESOLVED` names, and only while its
        run is held or terminal: any other run's worker is at it, or a question about it is open. `blobs` are the
        run's thread's. Once more with the same values it changes nothing."""

    # -- the outbox ------------------------------------------------------------------------------------------

    async def claim_deliveries(self, request: ClaimDeliveries) -> list[Delivery]:
        """Take deliveries that are `queued`, `ready` and due, of these sinks, for each at most so many, those that are
        due longest first, suspects before the others: `delivering`, this worker's, `attempts + 1`. None where the
        worker's row is not alive. Two workers never get the same try."""

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        """Say what came of tries, in one transaction; `strikes = 0`. One that is not this worker's any more, or has
        another number, is left alone. Of one that is over the next of its lane is ready, and claimable now
        (`DELIVER`)."""

    async def next_delivery(self, sinks: Sequence[str], *, suspects: bool = True) -> int | None:
        """How many microseconds until the next delivery to one of these sinks is due, 0 where one is; None if none is
        queued and ready. Suspects count, or do not."""

    async def overdue_deliveries(self, before: int, *, limit: int = 100) -> list[Delivery]:
        """Deliveries whose turn it is, and that were due before then, those that are due longest first."""

    async def deliveries(self, where: DeliveryFilter) -> list[Delivery]:
        """A page of deliveries, oldest id first."""

    async def get_deliveries(self, deliveries: Sequence[int]) -> list[Delivery]:
        """These deliveries, by id; missing ones are left out."""

    async def redeliver(self, deliveries: Sequence[int]) -> list[Delivery]:
        """Send dead deliveries on: `queued`, `attempts = 0` and `strikes = 0`, claimable now, with a new `seq` at the
        end of their lanes (also of a full one), in the order given; returns these rows as they are then, by id. One in
        another state is returned unchanged; one that is not there is left out."""

    # -- meters and budgets ----------------------------------------------------------------------------------

    async def meters(self, run: int, *, limit: int = 1000, offset: int = 0) -> list[MeterRow]:
        """The run's meters, by super-step, key, attempt, fence and number."""

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        """Sums of meters, by group and name."""

    async def set_budget(self, budget: NewBudget, by: str | None, *, if_rev: int | None = None) -> BudgetRow:
        """Set the limits of the budget of this name, made where there is none; `rev + 1` (1 for a new one). Open
        questions about it are withdrawn, and their runs woken (those in a worker's hands by `WAKE`), in the same
        transaction. With `if_rev`, one that is there and has been set another number of times is left as it is, and
        returned."""

    async def budgets(self, where: BudgetFilter) -> list[BudgetRow]:
        """A page of budgets, by name."""

    async def get_budgets(self, budgets: Sequence[int]) -> list[BudgetRow]:
        """These budgets, by id; missing ones are left out."""

    # -- transactions ----------------------------------------------------------------------------------------

    async def transact(
        self, worker: int, place: Place, work: Callable[[Transaction], Awaitable[AppendCheckpoint]]
    ) -> CommitOutcome:  # fmt: skip
        """Do `work` in a transaction of its own, and commit with it the record that it returns, which is for `place`,
        as `commit` would: guarded, and refused, by the same rules. Where the record is not written, nothing is (and the
        outcome says why); what `work` raises undoes all, and is raised, unless it follows from a database that cannot
        work now: that is `StoreUnavailable`.

        Where the record is there already, by this claim, `work` is called all the same, and undone.

        `work` is called again where its transaction lost against another one. Where the answer to the commit did not
        come, the store finds out whether it was written, before it is done again or said to be done. Raises
        `UsageError` on a store without SQL.
        """

    # -- operators -------------------------------------------------------------------------------------------

    async def retry(self, run: int, drop_keys: Sequence[str], *, undo: bool = False) -> Run | None:
        """Send a failed or cancelled run on, at its current super-step: `queued`, with `strikes = 0`, its cancellation
        and its deadline forgotten, its `ENDED` checkpoint, the named failed step records and the tries that were cut
        short deleted. It takes its old place in its thread's order, but a head that has begun keeps its turn. None if
        there is no such run; a run in another state is returned unchanged.

        With `undo` it goes on only to undo what is left: its outcome and the payload of its `ENDED` checkpoint become
        `Claimed.undoing`, its cancellation stays, and of its effects those that are `undo_failed` are tried from the
        beginning (`undo_attempt = 0`). A run without such effects is returned unchanged; and without `undo`, one of
        which an effect was undone, or is being.

        So is a run whose going on would undo the state of later ones: it is past its first super-step, the boundary
        that it would go on from holds a state, and that is not the thread's newest, or a head that has begun would go
        before it.
        """

    async def release(self, run: int) -> Run | None:
        """Send a held run on: `queued`, `strikes = 0`, reason cleared, tries that were cut short (of which nobody knows
        how they ended) in its current super-step forgotten. None if there is no such run; a run in another state is
        returned unchanged."""

    # -- reading: a page has at most `LIST_ROWS_MAX` rows, and none where less than one is asked for --------------

    async def get_runs(self, runs: Sequence[int]) -> list[Run]:
        """These runs, by id; missing ones are left out."""

    async def list_runs(self, where: RunFilter) -> list[Run]:
        """A page of runs, newest id first."""

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        """How these runs ended; those that have not are left out."""

    async def watch(self, runs: Sequence[int]) -> None:
        """Ask for an `ENDED` hint when one of these ends or is held."""

    async def get_thread(self, thread_id: str) -> Thread | None:
        """The thread, or None."""

    async def list_threads(
        self, *, agent: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[Thread]:
        """A page of threads, newest id first."""

    async def checkpoints(
        self,
        run: int,
        *,
        super_step: int | None = None,
        boundaries: bool = False,
        limit: int = 1000,
        after: tuple[int, int] | None = None,
    ) -> list[Checkpoint]:
        """The run's log in the order `(super_step, seq)`, from after that pair; only boundaries and the end with
        `boundaries`."""

    async def thread_checkpoints(
        self, thread: int, *, limit: int = 100, after: tuple[int, int] | None = None
    ) -> list[Checkpoint]:
        """The thread's boundaries and ends over all its runs, newest first by `(run's ordinal, super_step)`; `after`
        is the `(run id, super_step)` of the last one of the page before; after one that is not there comes nothing."""

    async def attempts(self, run: int) -> list[Attempt]:
        """The run's unfinished tries, by super-step, key and attempt."""

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Blobs of a thread by digest; missing ones are left out."""

    async def diagnose(self) -> list[tuple[str, bool, str]]:
        """Checks for `perdure doctor`: (what, whether it is well, what was found and what to do)."""
