"""Every error a user can meet, in one tree.

An error's docstring says when it is raised; its message names the ids and the remedy; its attributes carry the
ids, so that no caller parses text. Control flow (`Unwind` and `LeaseLost`) is a `BaseException`: an agent's `except
Exception` cannot eat it, and no framework shows it to a model.
"""

from __future__ import annotations

from typing import Any


class PerdureError(Exception):
    """The root: `except PerdureError` catches whatever perdure raises on purpose.

    Keyword arguments become attributes (`error.run_id`); the message is for people.
    """

    def __init__(self, message: str, /, **ids: Any) -> None:
        super().__init__(message)
        self.ids = ids

    def __getattr__(self, name: str) -> Any:
        ids = self.__dict__.get("ids", {})
        if name in ids:
            return ids[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class UsageError(PerdureError):
    """A call that can never succeed as it is written."""


class NotInRun(UsageError):
    """A verb that only works inside an agent was called outside of one."""


class UnknownAgent(UsageError):
    """No agent of that name is registered on the app."""


class NotSerializable(UsageError):
    """A value cannot be recorded, or does not have the declared type; `path` says where inside the value."""


class PayloadTooLarge(UsageError):
    """An encoded value is over its limit; `size` and `limit` are in bytes."""


class InvalidAnswer(UsageError):
    """An answer does not fit the question's schema; the question stays open. `path` says where inside the value."""


class NotFound(PerdureError):
    """Nothing in the store has that id."""


class Conflict(PerdureError):
    """Something else came first and won; the attributes say what."""


class ThreadBusy(Conflict):
    """`if_busy="reject"` and the thread has an unfinished run (`run_id`), or the thread's queue is full."""


class AlreadyAnswered(Conflict):
    """The question has an answer already."""


class InterruptClosed(Conflict):
    """The question takes no answer any more: it has expired or was withdrawn (`state`)."""


class MailboxFull(Conflict):
    """The thread's mailbox holds as many messages as it may (`thread_id`, `limit`)."""


class OutboxFull(Conflict):
    """So many deliveries wait for the sink already in this partition (`sink`, `partition`, `limit`)."""


class StartMismatch(Conflict):
    """The same start key came with another agent or other input, or the thread belongs to another agent."""


class RunEnded(PerdureError):
    """The run whose result was asked for ended without one."""


class RunFailed(RunEnded):
    """The run failed; `error` holds type, message and traceback as recorded."""


class RunCancelled(RunEnded):
    """The run was cancelled; `reason` says why."""


class RunHeld(PerdureError):
    """The run waits for a person; `reason` and `detail` say why. `perdure release RUN` sends it on."""


class StepFailed(PerdureError):
    """A step used up its attempts, or failed with an error that is final.

    Raised from the record, live and on replay alike: `type` is the original exception's qualified type name,
    `message` its text, `traceback` its formatted traceback, `key` the step, `attempts` how often it was tried;
    `retry_after`, only where a server had asked for it, how many seconds to wait before another try.
    """


class TimedOut(PerdureError, TimeoutError):
    """A durable wait, or a `perdure.timeout` block, ran out of time. Also a `TimeoutError`."""


class DeadlineExceeded(PerdureError):
    """The run's deadline came before its end: what it failed with."""


class OutcomeUnknown(PerdureError):
    """An effect was dispatched and its outcome was never recorded."""


class BudgetExceeded(PerdureError):
    """A budget has not enough left for a step, and nobody has raised it (`budget`, `lacking`)."""


class Undeliverable(PerdureError):
    """Raised by a sink: no further try can deliver this."""


class Diverged(PerdureError):
    """A step was reached with other arguments than the ones recorded under its key."""


class StoreError(PerdureError):
    """The store cannot do what was asked."""


class StoreUnavailable(StoreError):
    """The store could not be reached; the call may be repeated."""


class TransactionBroken(StoreError, ConnectionError):
    """The database has ended a transaction before it was committed, and nothing of it was written."""


class SchemaOutdated(StoreError):
    """The store's schema is older than this code; `perdure migrate` brings it up to date."""


class SchemaAhead(StoreError):
    """The store's schema was written by a newer perdure; upgrade this process."""


class Unwind(BaseException):
    """This execution of the run is over and its code is being unwound: clean up, call no verb.

    Not an `Exception`: user code must not handle it. Whatever the agent does after it is not recorded.
    """


class LeaseLost(Unwind):
    """This worker no longer owns the run: another one goes on with it, and nothing done here is recorded."""
