"""perdure makes AI agents durable.

A checkpoint after every step, leases and fences so that any worker resumes any run after any crash, on one SQLite
file or on Postgres, with the same agent code. `README.md` is the way in; `ARCHITECTURE.md` says how it works.
"""

from __future__ import annotations

from typing import Any

from perdure.app import App
from perdure.client.budgets import BudgetInfo
from perdure.client.deliveries import DeliveryInfo
from perdure.client.effects import EffectInfo
from perdure.client.inbox import InterruptInfo
from perdure.client.mail import MessageInfo
from perdure.client.usage import UsageInfo
from perdure.core.budgets import Budget, Cost
from perdure.core.endings import Again
from perdure.core.retry import Retry
from perdure.core.verdicts import DidNotHappen, Happened, StillUnknown
from perdure.errors import (
    AlreadyAnswered,
    BudgetExceeded,
    Conflict,
    DeadlineExceeded,
    Diverged,
    InterruptClosed,
    InvalidAnswer,
    LeaseLost,
    MailboxFull,
    NotFound,
    NotInRun,
    NotSerializable,
    OutboxFull,
    OutcomeUnknown,
    PayloadTooLarge,
    PerdureError,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunHeld,
    SchemaAhead,
    SchemaOutdated,
    StartMismatch,
    StepFailed,
    StoreError,
    StoreUnavailable,
    ThreadBusy,
    TimedOut,
    TransactionBroken,
    Undeliverable,
    UnknownAgent,
    Unwind,
    UsageError,
)
from perdure.runtime.asking import Default, interrupt
from perdure.runtime.child import Child
from perdure.runtime.children import call, start
from perdure.runtime.effect import effect, effect_key
from perdure.runtime.handle import Handle
from perdure.runtime.info import RunInfo
from perdure.runtime.mail import receive, send
from perdure.runtime.metering import meter
from perdure.runtime.outbox import deliver
from perdure.runtime.sinks import Incoming, Outgoing, Sink, Source
from perdure.runtime.step import step
from perdure.runtime.timers import sleep, sleep_until, timeout
from perdure.runtime.transaction import transaction
from perdure.runtime.undoing import compensate
from perdure.runtime.verbs import current, extend_timeout, now, random, uuid4
from perdure.store.protocol import Transaction

__all__ = [
    "Again",
    "AlreadyAnswered",
    "App",
    "Budget",
    "BudgetExceeded",
    "BudgetInfo",
    "Child",
    "Conflict",
    "Cost",
    "DeadlineExceeded",
    "Default",
    "DeliveryInfo",
    "DidNotHappen",
    "Diverged",
    "EffectInfo",
    "Handle",
    "Happened",
    "Incoming",
    "InterruptClosed",
    "InterruptInfo",
    "InvalidAnswer",
    "LeaseLost",
    "MailboxFull",
    "MessageInfo",
    "NotFound",
    "NotInRun",
    "NotSerializable",
    "OutboxFull",
    "OutcomeUnknown",
    "Outgoing",
    "PayloadTooLarge",
    "PerdureError",
    "Retry",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunHeld",
    "RunInfo",
    "SchemaAhead",
    "SchemaOutdated",
    "Sink",
    "Source",
    "StartMismatch",
    "StepFailed",
    "StillUnknown",
    "StoreError",
    "StoreUnavailable",
    "ThreadBusy",
    "TimedOut",
    "Transaction",
    "TransactionBroken",
    "Undeliverable",
    "UnknownAgent",
    "Unwind",
    "UsageError",
    "UsageInfo",
    "call",
    "compensate",
    "current",
    "deliver",
    "effect",
    "effect_key",
    "extend_timeout",
    "interrupt",
    "meter",
    "now",
    "random",
    "receive",
    "send",
    "sleep",
    "sleep_until",
    "start",
    "step",
    "timeout",
    "transaction",
    "uuid4",
]


def __getattr__(name: str) -> Any:
    """`__version__`, read when asked for: the package metadata cost more to find than all the rest to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("perdure")
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")
