"""Which types can be changed in place."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from perdure.core.mutability import can_change


class Plain(msgspec.Struct):
    n: int = 0


@dataclasses.dataclass
class Data:
    n: int = 0


class Model(pydantic.BaseModel):
    n: int = 0


class Dict(TypedDict):
    n: int


@dataclasses.dataclass(frozen=True)
class FrozenData:
    n: int = 0
    next: FrozenData | None = None


class FrozenStruct(msgspec.Struct, frozen=True):
    n: int = 0


class FrozenModel(pydantic.BaseModel, frozen=True):
    n: int = 0


class Named(NamedTuple):
    n: int = 0


@dataclasses.dataclass(frozen=True)
class DataWithList:
    n: list[int] = dataclasses.field(default_factory=list)


class StructWithDict(msgspec.Struct, frozen=True):
    n: dict[str, int] = msgspec.field(default_factory=dict)


class ModelWithData(pydantic.BaseModel, frozen=True):
    n: Data = Data()


class NamedWithSet(NamedTuple):
    n: set[int]


@dataclasses.dataclass(frozen=True)
class Unknown:
    n: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Colour(enum.Enum):
    RED = 1


Number = NewType("Number", int)


@pytest.mark.parametrize(
    "kind",
    [
        int, str, bool, float, bytes, None, type(None), tuple, tuple[int, ...], frozenset[str], FrozenData,
        FrozenStruct, FrozenModel, Named, Colour, Number, int | None, Literal["a"], Annotated[int, "many"],
        FrozenData | None, tuple[FrozenStruct, int],
    ],
)  # fmt: skip
def test_what_is_fixed_cannot_be_changed(kind: Any) -> None:
    assert not can_change(kind)


@pytest.mark.parametrize(
    "kind",
    [
        dict, list, set, bytearray, dict[str, int], Plain, Data, Model, Dict, DataWithList, StructWithDict,
        ModelWithData, NamedWithSet, tuple[list[int], int], Data | None, Annotated[Data, "many"], Any, object, Unknown,
        "a name", TypeVar("T"),
    ],
)  # fmt: skip
def test_what_may_be_changed_can_be(kind: Any) -> None:
    assert can_change(kind)
