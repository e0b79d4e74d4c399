"""What a program on a store's verbs is made of: frozen values that say everything needed to do them again.

An operation names its ids, fences and payloads itself; nothing in it depends on what a store answered. So a program can
be told to any store, in whole or in part, and a part still means something (a batch whose claim was left out is lost).
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Final

import msgspec

from perdure.core.records import Blob
from perdure.core.requests import NewWorker

MAIN: Final = "main"
"""The open store that is there from the first operation to the last."""

UNIT_S: Final = 1_000
"""Delays, leases and moves of the clock are whole numbers of this: far longer than any program takes, so what is due
does not depend on how fast a store is."""


class Call(msgspec.Struct, frozen=True):
    """One verb of one open store."""

    verb: str
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    by: str = MAIN
    """Which open store is asked; any name but the first one's is a clone, opened when it is first used."""

    def __str__(self) -> str:
        values = [*map(told, self.args), *(f"{name}={told(value)}" for name, value in self.named.items())]
        return f"{self.by}.{self.verb}({', '.join(values)})"

    def lighter(self) -> list[Call]:
        """The same call with one start or one change fewer."""
        if self.verb not in ("start", "commit"):
            return []
        *before, many = self.args
        fewer = [(*many[:at], *many[at + 1 :]) for at in range(len(many))]
        return [msgspec.structs.replace(self, args=(*before, less)) for less in fewer]


class Advance(msgspec.Struct, frozen=True):
    """Time passes."""

    units: int

    def __str__(self) -> str:
        return f"advance {self.units * UNIT_S} seconds"


class Reserve(msgspec.Struct, frozen=True):
    """Ids are taken. Which ones is the store's affair; that they are fresh is compared."""

    count: int

    def __str__(self) -> str:
        return f"main.reserve_ids({self.count}), beyond all before"


class Crash(msgspec.Struct, frozen=True):
    """An open clone dies as its process would; the next call by this name is another process."""

    by: str

    def __str__(self) -> str:
        return f"{self.by} crashes"


class Vanish(msgspec.Struct, frozen=True):
    """A worker registers and attends on an event loop of its own, the loop ends, and the open store is abandoned."""

    worker: NewWorker

    def __str__(self) -> str:
        return f"abandon the store of {told(self.worker)}"


class Silent(msgspec.Struct, frozen=True):
    """Who is silent, once whoever has died here is: a death may take a moment to show."""

    def __str__(self) -> str:
        return "main.silent_workers()"


class Look(msgspec.Struct, frozen=True):
    """Everything that can be read."""

    def __str__(self) -> str:
        return "everything that can be read"


Operation = Call | Advance | Reserve | Crash | Vanish | Silent | Look


def blob(data: bytes) -> Blob:
    """Bytes under their digest."""
    return Blob(hashlib.blake2b(data, digest_size=32).digest(), data)


def told(value: Any) -> str:
    """A value as a program shows it: structs without the fields that have their defaults, blobs by their data."""
    if isinstance(value, Blob):
        return f"blob({value.data!r})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(told, value))}]"
    if isinstance(value, Enum):
        return str(value.value)
    if not isinstance(value, msgspec.Struct):
        return repr(value)
    fields = [
        f"{field.name}={told(getattr(value, field.name))}"
        for field in msgspec.structs.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(fields)})"
