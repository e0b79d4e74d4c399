"""Digests: the same for the same content in every process, whatever an argument is."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.digests import digest, digest64, name_of
from tests.support.ids import plainly

DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.tuples(st.integers()), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=15,
)


@dataclass
class Query:
    text: str
    client: Any = None


class Model(pydantic.BaseModel):
    text: str


class Client:
    def fetch(self) -> None: ...


def shuffled(value: Any) -> Any:
    """The same content, its dicts and sets built in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [shuffled(part) for part in value]
    return {*list(value)[::-1]} if isinstance(value, set) else value


@given(DATA)
def test_anything_has_a_signed_64_bit_digest_that_ignores_the_order_of_dicts_and_sets(value: Any) -> None:
    number = digest64(((value,), {}))

    assert -(2**63) <= number < 2**63
    assert number == digest64(((shuffled(value),), {}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ("a", b"a"),
        ([], {}),
        ([1, [2]], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({1: "a"}, {"1": "a"}),
        (10**400, 10**400 + 1),
        (10**400, -(10**400)),
        ("\ud800", "\udfff"),
        ({1, "a"}, {1, "b"}),
        (Query("a"), Query("b")),
        ({"q": Query("a", Client()), 1: 1}, {"q": Query("b", Client()), 1: 1}),
        (Model(text="a"), Model(text="b")),
        (len, print),
        (Client(), Query("a")),
        (Client().fetch, len),
    ],
    ids=plainly,
)
def test_other_content_has_another_digest(one: Any, other: Any) -> None:
    assert digest64(((one,), {})) != digest64(((other,), {}))


def test_objects_count_by_their_type_and_functions_by_their_name() -> None:
    assert digest64(Client()) == digest64(Client())
    assert digest64([Client().fetch]) == digest64([Client().fetch])
    assert digest64({"c": Query("a", object())}) == digest64({"c": Query("a", object())})
    assert digest64({object(), 1}) == digest64({1, object()})
    assert name_of(Client().fetch).endswith("test_digests.Client.fetch")
    assert name_of(functools.partial(len)) == "functools.partial"


def test_a_cycle_has_a_digest() -> None:
    def loop() -> list[Any]:
        value: list[Any] = [1]
        value.append(value)
        return value

    assert digest64(loop()) == digest64(loop())


def test_another_process_computes_the_same_digest() -> None:
    script = (
        "from perdure.core.digests import digest64; print(digest64(({'b', 'a', 'c'}, {'x': {1: {'q', 'r'}}}, len)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(answers) == 1


def test_an_address_has_20_bytes() -> None:
    assert len(digest(b"")) == 20
    assert digest(b"a") != digest(b"b")
