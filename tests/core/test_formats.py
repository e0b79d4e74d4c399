"""Formats: an answer that whoever asked could not read is refused where it is given, however deep in a type it lies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from perdure.core.answers import canonical_bytes, check_answer, decode_answer, schema_bytes
from perdure.errors import InvalidAnswer
from tests.support.ids import plainly

Zoned = Annotated[datetime, Meta(tz=True)]
Naive = Annotated[datetime, Meta(tz=False)]


@dataclass
class Meeting:
    """A dataclass with a time in it, and itself."""

    when: datetime
    after: Meeting | None = None


class Call(msgspec.Struct, tag=True):
    """One of two with a tag."""

    at: datetime


class Letter(msgspec.Struct, tag=True):
    """The other."""

    scan: bytes


class Row(msgspec.Struct, array_like=True, tag=True):
    """One that is written as an array."""

    at: datetime


class Span(NamedTuple):
    """A tuple with names."""

    first: datetime
    last: datetime


class Note(TypedDict):
    """A dict with names."""

    at: time


AT = "2020-01-01T00:00:00"

READABLE: list[tuple[Any, Any]] = [
    (datetime, AT), (datetime, AT + "Z"), (Zoned, AT + "+01:00"), (Naive, AT), (time, "09:30:00"), (bytes, "aGk="),
    (Annotated[time, Meta(tz=False)], "09:30:00"), (Annotated[time, Meta(tz=True)], "09:30:00Z"),
    (datetime, datetime(2020, 1, 1)), (bytes, b"hi"), (dict[int, str], {"7": "a"}), (dict[int, str], {7: "a"}),
    (dict[date, int], {"2020-01-01": 1}), (dict[datetime, int], {AT: 1}), (dict[float, int], {"1.5": 1}),
    (Meeting, {"when": AT, "after": {"when": AT}}), (list[datetime], [AT]), (tuple[int, datetime], [1, AT]),
    (datetime | int | None, AT), (datetime | int | None, None), (Call | Letter, {"type": "Letter", "scan": "aGk="}),
    (Call | Letter | bytes | None, "aGk="), (Row, ["Row", AT]), (Span, [AT, AT]), (Note, {"at": "09:30:00"}),
    (dict[UUID, Meeting], {str(UUID(int=7)): {"when": AT}}), (Annotated[datetime, Meta(title="t")], AT),
]  # fmt: skip

UNREADABLE: list[tuple[Any, Any]] = [
    (datetime, "tomorrow"), (datetime, "2020-13-45T00:00:00Z"), (time, "noon"), (bytes, "%%"), (Zoned, AT),
    (Naive, AT + "Z"), (Naive, AT + "-01:00"), (Annotated[time, Meta(tz=True)], "09:30:00"),
    (Annotated[time, Meta(tz=False)], "09:30:00Z"), (dict[int, str], {"x": "a"}), (dict[int, str], {"1.5": "a"}),
    (dict[date, str], {"x": "a"}), (dict[datetime, int], {"x": 1}), (dict[float, int], {"x": 1}),
    (dict[bytes, int], {"%%": 1}), (dict[Decimal, int], {"x": 1}), (dict[timedelta, int], {"x": 1}),
    (dict[time, int], {"x": 1}), (Meeting, {"when": "soon"}), (Meeting, {"when": AT, "after": {"when": "soon"}}),
    (list[datetime], [AT, "soon"]), (tuple[int, datetime], [1, "soon"]), (tuple[datetime, ...], ["soon"]),
    (datetime | int | None, "soon"), (Call | Letter, {"type": "Letter", "scan": "%%"}),
    (Call | Letter, {"type": "Call", "at": "soon"}), (Call | Letter | bytes | None, "%%"), (Row, ["Row", "soon"]),
    (Span, [AT, "soon"]), (Note, {"at": "noon"}), (dict[UUID, Meeting], {str(UUID(int=7)): {"when": "soon"}}),
    (Annotated[datetime, Meta(title="t")], "soon"), (set[datetime], ["soon"]),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "answer"), READABLE, ids=plainly)
def test_what_can_be_read_is_taken(annotation: Any, answer: Any) -> None:
    check_answer(schema_bytes(annotation), answer)
    decode_answer(annotation, canonical_bytes(answer))


@pytest.mark.parametrize(("annotation", "answer"), UNREADABLE, ids=plainly)
def test_what_cannot_be_read_is_refused_where_it_is_given(annotation: Any, answer: Any) -> None:
    with pytest.raises(InvalidAnswer, match="The question stays open"):
        check_answer(schema_bytes(annotation), answer)
