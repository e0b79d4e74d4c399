"""Transactions: steps that write the user's own tables, in the commit that records them.

What a transaction does to the database and the record that says so are one commit, guarded as every commit is. So it
happens exactly once: a worker that dies in between leaves neither, and one that has lost its run commits neither. The
body gets a `Transaction` first (its caller gives the rest), and may do nothing else that lasts: it is done again where
its transaction lost against another one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, overload

from perdure.core.budgets import Cost
from perdure.core.changes import AppendCheckpoint, CommitOutcome
from perdure.core.endings import HandedBack, Held, Lost
from perdure.core.records import HeldReason
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.errors import NotInRun, StoreUnavailable, UsageError
from perdure.runtime.callables import is_async, name_of
from perdure.runtime.frames import AgentFrame, StepFrame, frame, outside
from perdure.runtime.metering import use_of
from perdure.runtime.settings import check_name
from perdure.runtime.step import UNSET, Step, StepOptions, as_retry, check_estimate, timeout_s
from perdure.runtime.stepping import try_once
from perdure.runtime.strays import seen_to_its_end
from perdure.store.protocol import Transaction

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

P = ParamSpec("P")
R = TypeVar("R")

TRANSACTION_TIMEOUT_S: Final = 10.0
"""Of one try: on SQLite nobody else writes meanwhile."""


FREE: Final = Cost(usd=0, tokens=0)
"""What one costs that says nothing of it."""


class TransactionStep(Step[P, R]):
    """A function that writes the store's own database."""

    undone_by_crash = True

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(frame.get(), AgentFrame):
            raise NotInRun(
                f"transaction {self.settings.name!r} was called outside of an agent's own code, where there is no "
                "commit for it to be part of; to test its SQL, call .fn(tx, ...) with a transaction of your own"
            )
        return await super().__call__(*args, **kwargs)

    async def try_and_record(
        self, here: StepFrame, digest: int, started_at: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # fmt: skip
        """One try, in a transaction, seen to its end."""
        at = here.super_step
        await at.flushed()  # what it sees and shows rests on all that was done before
        with outside():
            body = asyncio.get_running_loop().create_task(
                self._transact(here, digest, started_at, args, kwargs), name=f"transaction {here.key}"
            )
        await seen_to_its_end(at, body, here.put_off)
        outcome, value = body.result()
        _heed(at, outcome)
        return value

    async def _transact(
        self, here: StepFrame, digest: int, started_at: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[CommitOutcome, Any]:  # fmt: skip
        at = here.super_step
        value: Any = None
        broke: list[Exception] = []

        async def work(tx: Transaction) -> AppendCheckpoint:
            nonlocal value
            here.meters.clear()  # of a try whose transaction lost against another one
            here.filed = False
            try:
                payload, value = await try_once(self, here, (tx, *args), kwargs)
            except Exception as error:
                broke.append(error)
                raise
            at.check()
            use = use_of(at, here.meters, here.began_s)
            here.filed = True
            return at.record(
                here.key, digest, here.attempt, payload, failed=False, started_at=started_at, use=use
            )  # fmt: skip

        run = at.claimed.run
        try:
            outcome = await at.host.store.transact(at.host.worker, (run, at.number, here.key), work)
        except StoreUnavailable as error:
            if error in broke:  # another store's, say, that the body has asked
                raise
            await asyncio.sleep(at.host.transactions.failed(run, error))
            at.close(HandedBack())  # if it was written after all, whoever goes on with the run finds it
            at.check()
            raise
        except Exception:
            at.host.transactions.succeeded(run)
            raise
        at.host.transactions.succeeded(run)
        return outcome, value

    def __repr__(self) -> str:
        return f"<transaction {self.settings.name}>"


def _heed(at: SuperStep, outcome: CommitOutcome) -> None:
    """What the store says of the commit, as of any other."""
    run = at.claimed.run
    if not outcome.alive or run in outcome.lost:
        at.close(Lost("another worker has claimed it"))
    elif run in outcome.refused:
        why = outcome.refused[run]
        at.close(Held(HeldReason.REFUSED, f"the store refused a write of this run: {why}"))
    at.check()


@overload
def transaction(fn: Callable[Concatenate[Transaction, P], Awaitable[R]], /) -> TransactionStep[P, R]: ...
@overload
def transaction(
    *,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    returns: Any = ...,
    ignore_args: bool = ...,
    estimate: Cost | None = ...,
) -> Callable[[Callable[Concatenate[Transaction, P], Awaitable[R]]], TransactionStep[P, R]]: ...


def transaction(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: float | str | timedelta | None = UNSET,
    returns: Any = UNSET,
    ignore_args: bool = False,
    estimate: Cost | None = None,
) -> Any:
    """Make a transaction of an async function, `async def move(tx, ...)`: `@transaction` or `@transaction(...)`.

    `tx` runs SQL on the store's own database (Postgres or SQLite), in the same transaction as the step's record. The
    agent calls it without `tx`. `timeout`: of one try, 10 seconds if it is not given. `estimate`: no dollars and no
    tokens, if it is not given. The rest is as for `step`.
    """
    if fn is None:
        return functools.partial(
            transaction, name=name, retry=retry, timeout=timeout, returns=returns, ignore_args=ignore_args,
            estimate=estimate,
        )  # fmt: skip
    if not callable(fn) or isinstance(fn, Step):
        raise UsageError(f"transaction() takes an async function, not {shown(fn)}")
    if not inspect.signature(fn).parameters:
        raise UsageError(
            f"transaction {name_of(fn)} takes no argument; its first one is the transaction itself: "
            f"async def {name_of(fn)}(tx, ...)"
        )
    if not is_async(fn):
        raise UsageError(
            f"transaction {name_of(fn)} is a plain def; declare it with async def, and await tx.execute(…)"
        )
    settings = StepOptions(
        name=check_name("a transaction's name", name or name_of(fn)),
        retry=as_retry(retry) if retry is not None else Retry(),
        timeout_s=TRANSACTION_TIMEOUT_S if timeout is UNSET else timeout_s(timeout),
        ignore_args=ignore_args,
        estimate=check_estimate(FREE if estimate is None else estimate),
    )
    return TransactionStep(fn, settings, cpu="loop", returns=returns)
