"""Testimony: what processes tell the recorder, one JSON line each.

The order of the file is the order in which things were told; `mono` is the machine's monotonic clock, the same for all
processes, at the moment of telling. Runs and workers are the store's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

FILE: Final = "testimony.jsonl"
"""The recorder's file, in the folder of the whole."""


class Body(NamedTuple):
    """A step body's name."""

    run: int
    super_step: int
    key: str


class Line(msgspec.Struct, frozen=True, gc=False, tag_field="what", tag=str.lower):
    """What every line has."""

    pid: int
    mono: float


class Began(Line, frozen=True, gc=False):
    """A step body begins. It goes on when this line is on disk."""

    run: int
    super_step: int
    key: str
    attempt: int
    fence: int
    worker: int
    deployment: str


class Ended(Line, frozen=True, gc=False):
    """A step body has ended; told before its result is handed over. Told twice, the last one counts."""

    run: int
    super_step: int
    key: str
    attempt: int
    fence: int
    error: str | None
    """The type of what it raised."""


class Asked(Line, frozen=True, gc=False):
    """A client is about to ask for a run."""

    key: str
    lane: str
    number: int
    agent: str
    args: tuple[int, ...]
    thread_id: str | None
    if_busy: str
    delay_s: float
    priority: int


class Started(Line, frozen=True, gc=False):
    """`start` has returned to a client: the key's run is on disk."""

    key: str
    run: int


class Refused(Line, frozen=True, gc=False):
    """`start` has raised."""

    key: str
    error: str


class Tested(Line, frozen=True, gc=False):
    """A key was asked for with other input, which must be refused."""

    key: str
    refused: bool


class Told(Line, frozen=True, gc=False):
    """A client has been given the end of a run: its result, or its error's message."""

    key: str
    run: int
    state: str
    value: Any


class Struck(Line, frozen=True, gc=False):
    """The tormentor begins a fault; `victim` is the process, where it is one."""

    fault: str
    victim: int | None
    detail: str


class Fell(Line, frozen=True, gc=False):
    """A process ended, and nobody here had ended it."""

    name: str
    fallen: int
    code: int
    words: str


class Held(Line, frozen=True, gc=False):
    """A run was found held, and is sent on."""

    run: int
    reason: str
    detail: str
    strikes: int
    cut_short: int
    """Tries of its steps of which nobody knows how they ended."""


class Phase(Line, frozen=True, gc=False):
    """A part of the whole begins: `faults`, `settling`, `settled`."""

    name: str


Testimony = Began | Ended | Asked | Started | Refused | Tested | Told | Struck | Fell | Held | Phase

_decoder: Final = msgspec.json.Decoder(Testimony)
_encoder: Final = msgspec.json.Encoder()


def encoded(line: Testimony) -> bytes:
    """The line as it is sent and kept."""
    return _encoder.encode(line) + b"\n"


def read(path: Path) -> Iterator[Testimony]:
    """The whole lines of a recorder's file, in order; one that is still being written is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _decoder.decode(line)
