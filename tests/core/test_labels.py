"""Labels: what a message is called, and what a receiver takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.codec import codec_for
from perdure.core.labels import label_of, labels_of, member_of, message_bytes
from perdure.errors import NotSerializable, UsageError

T = TypeVar("T")


@dataclass
class Order:
    """A message."""

    item: str


class Stop(msgspec.Struct):
    """Another."""


class Note(pydantic.BaseModel):
    """A model."""

    text: str


class Box(msgspec.Struct, Generic[T]):
    """A generic one."""

    inside: T


class Size(Enum):
    """A choice."""

    LARGE = "large"


class Point(NamedTuple):
    """A tuple with names."""

    x: int


class Options(TypedDict):
    """A dict with names."""

    fast: bool


Cents = NewType("Cents", int)


@pytest.mark.parametrize(
    ("message", "declared"),
    [
        (Order("tea"), Order), (Stop(), Stop), (Note(text="x"), Note), (Box(1), Box[int]), (Size.LARGE, Size),
        (Point(1), Point), ({"fast": True}, Options), ({"a": 1}, dict[str, int]), ([1], list[int]), ("x", str),
        (1, int), (1.5, float), (True, bool), (None, type(None)), (b"x", bytes), ((1, 2), tuple[int, int]),
        ({1}, set[int]), (Cents(5), Cents), ("a", Literal["a", 1]), (1, Literal["a", 1]), (Order("x"), Order | Stop),
        (Stop(), Stop | Note | Order), (None, Order | None), (5, Annotated[int, "cents"]),
        (datetime(2026, 12, 1), datetime), (Order("x"), "Order"),
    ],
)  # fmt: skip
def test_a_receiver_takes_what_it_names(message: Any, declared: Any) -> None:
    assert label_of(message) in labels_of(declared)
    back = codec_for(member_of(declared, label_of(message))).decode(message_bytes(message))
    assert isinstance(declared, str) or back == message


@pytest.mark.parametrize(
    ("message", "declared"),
    [(Order("tea"), Stop), (1, str), (True, int), (1, float), ({}, Order), (Order("x"), "Stop"), (None, Order | Stop)],
)
def test_and_nothing_else(message: Any, declared: Any) -> None:
    assert label_of(message) not in labels_of(declared)


@pytest.mark.parametrize("anything", [None, Any, object, Order | Any])
def test_any_message_has_no_labels(anything: Any) -> None:
    assert labels_of(anything) == ()


def test_labels_are_sorted_and_unique() -> None:
    assert labels_of(Stop | Order | None) == ("NoneType", "Order", "Stop")
    assert labels_of(list[int] | list[str]) == ("list",)


@pytest.mark.parametrize("nonsense", [5, T, Order("x"), "", "x" * 200, "\0", "\ud800", print, Order | T])
def test_what_names_no_type_is_refused(nonsense: Any) -> None:
    with pytest.raises(UsageError):
        labels_of(nonsense)


@pytest.mark.parametrize("message", [object(), print, {"order": Order("x")}, [Stop()], Order])
def test_what_cannot_be_recorded_is_no_message(message: Any) -> None:
    with pytest.raises((NotSerializable, UsageError)):
        message_bytes(message)


@given(st.text(min_size=1, max_size=128).filter(lambda text: "\0" not in text))
def test_text_is_a_label_itself(text: str) -> None:
    assert labels_of(text) == (text,)
