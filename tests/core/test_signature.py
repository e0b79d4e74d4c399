"""Signatures: arguments bound, recorded and read back by their declared types."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from perdure.core.codec import decode
from perdure.core.signature import Signature, function_name, param_annotation, return_annotation
from perdure.errors import NotSerializable, UsageError
from tests.support.ids import plainly

if TYPE_CHECKING:
    from decimal import Decimal as Nowhere


@dataclass
class Item:
    name: str


@dataclass
class State:
    count: int = 0


async def order(item: Item, count: int = 1, *rest: Item, gift: bool = False, state: State, **more: list[int]) -> Item:
    return item


async def hidden(item: Item, price: Nowhere | None = None, *, state: Nowhere) -> Nowhere:
    return state


def plain(a, b=2): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("args", "kwargs", "back"),
    [
        ((Item("a"),), {}, ((Item("a"),), {})),
        ((Item("a"), 2), {"gift": True}, ((Item("a"), 2), {"gift": True})),
        ((), {"count": 3, "item": Item("a")}, ((Item("a"), 3), {})),
        ((Item("a"), 1, Item("b"), Item("c")), {"x": [1]}, ((Item("a"), 1, Item("b"), Item("c")), {"x": [1]})),
        (({"name": "a"},), {}, ((Item("a"),), {})),
    ],
    ids=plainly,
)
def test_arguments_come_back_by_their_declared_types(args: Any, kwargs: Any, back: Any) -> None:
    signature = Signature.of(order)

    assert signature.decode(signature.bind_encode(args, kwargs)) == back


def test_the_same_call_gives_the_same_bytes_however_it_is_written() -> None:
    signature = Signature.of(order)

    one = signature.bind_encode((Item("a"), 2), {"gift": True})
    other = signature.bind_encode((), {"gift": True, "count": 2, "item": Item("a")})

    assert one == other


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((Item("a"),), {"item": Item("b")}), ((), {"count": 1})], ids=plainly
)
def test_wrong_arguments_are_refused_with_the_signature(args: Any, kwargs: Any) -> None:
    with pytest.raises(UsageError, match=r"order\(item: Item, count: int = 1"):
        Signature.of(order).bind_encode(args, kwargs)


def test_the_state_is_not_the_callers_to_give() -> None:
    def agent(item: str, *, state: State) -> None: ...

    with pytest.raises(UsageError, match="unexpected keyword argument 'state'"):
        Signature.of(agent).bind_encode(("a",), {"state": State()})


@pytest.mark.parametrize(
    ("args", "kwargs", "path", "param"),
    [
        ((Item("a"), "two"), {}, "$[1]", "count"),
        ((Item("a"),), {"x": [1, "b"]}, "$.x[1]", "more"),
        ((Item("a"), 1, {"nome": "b"}), {}, "$[2]", "rest"),
        ((Item("\ud800"),), {}, "$[0].name", "item"),
    ],
    ids=plainly,
)
def test_a_wrong_value_is_refused_with_its_path(args: Any, kwargs: Any, path: str, param: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        Signature.of(order).bind_encode(args, kwargs)

    assert (caught.value.path, caught.value.param) == (path, param)


def test_a_recorded_call_that_no_longer_fits_is_a_typed_error() -> None:
    data = Signature.of(order).bind_encode((Item("a"), 2), {"gift": True})

    def fewer(item: Item) -> None: ...
    def other(item: int, count: int, *, gift: bool) -> None: ...
    def longer(item: Item, count: int, extra: int, *, gift: bool) -> None: ...

    for changed in (fewer, other, longer):
        with pytest.raises(NotSerializable):
            Signature.of(changed).decode(data)


def test_an_unresolvable_annotation_harms_nothing_until_it_is_needed() -> None:
    signature = Signature.of(hidden)

    assert signature.decode(signature.bind_encode((Item("a"),), {})) == ((Item("a"),), {})
    with pytest.raises(UsageError, match="TYPE_CHECKING"):
        signature.bind_encode((Item("a"), 3), {})
    with pytest.raises(UsageError, match="TYPE_CHECKING"):
        return_annotation(hidden)


def test_without_annotations_arguments_are_plain_data() -> None:
    signature = Signature.of(plain)

    assert signature.decode(signature.bind_encode(([1],), {"b": {"c": b"d"}})) == (([1], {"c": b"d"}), {})
    with pytest.raises(NotSerializable):
        signature.bind_encode((Item("a"),), {})


def test_a_parameter_of_an_impossible_type_is_a_usage_error() -> None:
    def agent(client: functools.partial[int]) -> None: ...

    with pytest.raises(UsageError, match="client"):
        Signature.of(agent).bind_encode((print,), {})


def test_names_of_enclosing_functions_are_found_where_the_function_uses_them() -> None:
    @dataclass
    class Local:
        x: int

    def agent(local: Local) -> Local:
        return Local(local.x)

    assert return_annotation(agent) is Local
    assert param_annotation(agent, "local") is Local


def test_return_annotations_of_every_kind_of_callable() -> None:
    class Client:
        async def fetch(self) -> list[Item]:
            return []

        def __call__(self) -> Item:
            return Item("a")

    def later() -> Awaitable[Item]:
        return order(Item("a"), state=State())

    @functools.wraps(order)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert return_annotation(order) is Item
    assert return_annotation(wrapper) is Item
    assert return_annotation(later) is Item
    assert return_annotation(Client().fetch) == list[Item]
    assert return_annotation(Client()) is Item
    assert return_annotation(functools.partial(order, Item("a"))) is Item
    assert return_annotation(plain) is Any
    assert return_annotation(print) in (Any, None)
    assert param_annotation(order, "state") is State
    assert [function_name(fn) for fn in (order, functools.partial(order), Client().fetch, Client())] == [
        "order", "order", "fetch", "Client",
    ]  # fmt: skip


def test_the_record_is_plain_msgpack() -> None:
    assert decode(Signature.of(order).bind_encode((Item("a"),), {"gift": True})) == [[{"name": "a"}], {"gift": True}]
