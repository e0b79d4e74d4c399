"""The arguments of `perdure start`: JSON as the agent's parameters declare them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field

from perdure.cli.arguments import typed
from perdure.core.signature import Signature
from perdure.errors import UsageError


@dataclass
class Item:
    id: str
    express: bool = False


class Card(msgspec.Struct, tag=True, rename="camel"):
    card_number: str


class Cash(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    coins: int = 0


class Place(TypedDict, total=False):
    city: str


class Model(BaseModel):
    name: str = Field("", pattern="^a*$")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""


@dataclass
class Sum:
    amount: Decimal
    at: datetime


async def pay(sum: Sum, of: dict[tuple[int, int], Sum]) -> None:
    """Of its second parameter there is no JSON schema."""


async def order(
    items: list[Item], note: Item | None = None, *rest: Place, paid: Card | Cash | None = None,
    model: Model | None = None, anything: Any = None,
    open: Open | None = None, by_name: dict[str, Item] | None = None, how: Literal["a"] = "a",
) -> None:  # fmt: skip
    """What the values below are for."""


ORDER = Signature.of(order)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (
            [[{"id": "a"}, {"id": "b", "exprss": True}]],
            {},
            "'items' of order(.*'exprss' (did you mean 'express'?), at $[1]",
        ),
        ([[], {"id": "a", "exprss": True}], {}, "'note' of order(.*'exprss' (did you mean 'express'?), at $; it takes"),
        ([[], None, {"city": "Rome"}, {"town": "Rome"}], {}, "'rest' of order(.*'town', at $; it takes"),
        ([[]], {"paid": {"type": "Card", "cardNumber": "1", "nmae": 1}}, "'paid' of order(.*no field 'nmae'"),
        ([[]], {"model": {"nane": "a"}}, "'model' of order(.*'nane' (did you mean 'name'?)"),
        ([[]], {"by_name": {"x": {"id": "a", "ex": True}}}, "'by_name' of order(.*no field 'ex', at $.x"),
    ],
)
def test_a_field_that_the_declared_type_does_not_have_is_refused_by_name(
    args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        typed(ORDER, args, kwargs)

    where, _, what = said.partition(".*")
    assert where in str(refused.value) and what in str(refused.value)


def test_fields_that_there_are_and_types_that_take_any_are_taken() -> None:
    given: dict[str, Any] = {
        "paid": {"type": "Card", "cardNumber": "1"}, "model": {"name": "aa"}, "anything": {"x": {"y": 1}},
        "open": {"name": "n", "more": 1}, "by_name": {"x": {"id": "a", "express": True}},
    }  # fmt: skip
    args, kwargs = typed(ORDER, [[{"id": "a", "express": True}], None, {"city": "Rome"}], given)

    assert args == [[Item("a", True)], None, {"city": "Rome"}]
    assert kwargs["paid"] == Card("1") and kwargs["by_name"] == {"x": Item("a", True)}
    assert kwargs["open"].model_extra == {"more": 1}


def test_what_a_schema_would_not_take_but_decoding_does_is_taken() -> None:
    row = {"amount": 1.5, "at": "2026-11-01T09:00:00"}
    args, _ = typed(Signature.of(pay), [row, {}], {})

    assert args == [Sum(Decimal("1.5"), datetime(2026, 11, 1, 9)), {}]
    with pytest.raises(UsageError, match="no field 'att'"):
        typed(Signature.of(pay), [row | {"att": 1}], {})
