"""The codec: what goes in comes back, in value and in type, or is refused where it is recorded."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Never, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import codec as codec_module
from perdure.core.codec import Codec, codec_for, decode, encode
from perdure.errors import NotSerializable, PayloadTooLarge, UsageError
from tests.support.ids import plainly

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary()
JSON_SHAPED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT | st.integers(-(2**63), 2**63), inner),
    max_leaves=20,
)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mood(enum.StrEnum):
    GOOD = "good"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Animal:
    name: str


@dataclasses.dataclass
class Dog(Animal):
    tricks: list[str]


@dataclasses.dataclass
class Puppy(Animal):
    pass


@dataclasses.dataclass(eq=False)
class Unequal:
    name: str
    parts: list[int]


@dataclasses.dataclass
class Note:
    title: str
    meta: dict[str, Any]


class Cart(msgspec.Struct):
    items: list[str] = []
    total: Decimal = Decimal(0)


class Cat(msgspec.Struct, tag=True):
    lives: int


class Fish(msgspec.Struct, tag=True):
    fins: int


class Row(TypedDict):
    id: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Reply(pydantic.BaseModel):
    text: str
    tokens: int = 0
    tags: list[str] = []
    key: str = pydantic.Field(default_factory=lambda: "made")


class LongReply(Reply):
    rest: str = ""


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True)
    at: datetime = pydantic.Field(alias="createdAt")
    link: pydantic.AnyUrl | None = None
    place: Path | None = None


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


def same(a: object, b: object) -> bool:
    """Equality that tells 1 from 1.0, 0.0 from -0.0, and knows NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    return a == b


# -- without a declared type ---------------------------------------------------------------------------------------


@given(JSON_SHAPED)
def test_json_shaped_data_and_bytes_come_back_exactly(value: Any) -> None:
    data, back = Codec().roundtrip(value)

    assert same(back, value)
    assert same(decode(data), value)


def test_a_tuple_comes_back_as_a_list() -> None:
    assert Codec().roundtrip({"a": (1, (2, math.nan))})[1]["a"][1][0] == 2


@pytest.mark.parametrize(
    "value",
    [math.nan, -0.0, math.inf, "a\0b", "", [], {}, b"", {"": {}}, {1: 2}, {True: 1}, {None: 1}, 2**64 - 1, -(2**63)],
)
def test_c16_odd_values_round_trip(value: Any) -> None:
    assert same(Codec().roundtrip(value)[1], value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (10**400, "$"),
        ({"a": [1, 2**64]}, "$.a[1]"),
        ({"a b": [-(2**63) - 1]}, "$['a b'][0]"),
        (["\ud800"], "$[0]"),
        ({"x": {"\udfff": 1}}, "$.x key '\\udfff'"),
        ({"client": [object()]}, "$.client[0]"),
        ({"f": test_a_tuple_comes_back_as_a_list}, "$.f"),
        ([{"when": datetime(2026, 1, 1)}], "$[0].when"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], "$[0]"),
        ({"tags": {1, 2}}, "$.tags"),
        ({"p": Point(1, 2)}, "$.p"),
        ({"e": Color.RED}, "$.e"),
        ({"e": Level.HIGH}, "$.e"),
        ({"e": [Mood.GOOD]}, "$.e[0]"),
        ({"d": Animal("Rex")}, "$.d"),
        ({"d": Cart()}, "$.d"),
        ({"m": Reply(text="hi")}, "$.m"),
        ({"c": Counter("aab")}, "$.c"),
        ({"c": defaultdict(list)}, "$.c"),
        ({"n": [UUID(int=1)]}, "$.n[0]"),
        ({date(2026, 1, 1): 1}, "$ key datetime.date"),
        ([msgspec.msgpack.Ext(1, b"x")], "$[0]"),
    ],
    ids=plainly,
)
def test_what_would_come_back_as_something_else_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        Codec().roundtrip(value)

    assert caught.value.path == path
    assert path in str(caught.value)
    str(caught.value).encode()


def test_the_refusal_of_an_object_tells_to_declare_its_type() -> None:
    with pytest.raises(NotSerializable, match="returns=Foo"):
        encode(Animal("Rex"))


def test_a_forgotten_await_is_called_one() -> None:
    async def answer() -> int:
        return 42

    coroutine = answer()
    with pytest.raises(NotSerializable, match="Put an `await` before the call"):
        encode([coroutine])
    coroutine.close()


def test_a_cycle_is_refused_where_it_closes() -> None:
    value: dict[str, Any] = {"fine": [1], "list": []}
    value["list"].append({"again": value["list"]})

    with pytest.raises(NotSerializable, match="contains itself") as caught:
        encode(value)

    assert caught.value.path == "$.list[0].again"


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):  # Python 3.12 and 3.13 let C code go far deeper than Python code
        value = [value]

    with pytest.raises(NotSerializable, match="nested too deeply"):
        encode(value)


def test_a_value_over_the_limit_is_refused_with_size_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_module, "PAYLOAD_BYTES_MAX", 100)

    with pytest.raises(PayloadTooLarge) as caught:
        encode("x" * 200)

    assert (caught.value.size, caught.value.limit) == (202, 100)


LINK = pydantic.AnyUrl("https://example.com/a")

# -- with one --------------------------------------------------------------------------------------------------------

TYPED = [
    (Animal, Animal("Rex")),
    (Note, Note("a", {"b": [1, None, {"c": 2.5}]})),
    (list[Dog], [Dog("Rex", ["sit"])]),
    (Cart, Cart(["tea"], Decimal("1.50"))),
    (Cat | Fish, Fish(2)),
    (Tree, Tree(1, [Tree(2, [Tree(3)])])),
    (Row, {"id": 7}),
    (Point, Point(1, 2)),
    (Color, Color.RED),
    (list[Level], [Level.HIGH]),
    (Mood | None, Mood.GOOD),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=-1, microseconds=3)),
    (Decimal, Decimal("1E+500")),
    (UUID, UUID(int=5)),
    (bytes, b"\0\xff"),
    (set[str], {str(n) for n in range(100)}),
    (frozenset[int], frozenset({1, 2})),
    (tuple[int, str], (1, "a")),
    (tuple[float, ...], (1.0, 2.0)),
    (dict[str, Any], {"a": [1, {"b": None}], "n": math.inf}),
    (dict[int, list[bool]], {1: [True]}),
    (list, [1, "a", {"b": 2}]),
    (dict[str, object], {"a": [1]}),
    (object, {"a": 1}),
    (int | str | None, "x"),
    (None, None),
    (Never, None),
    (Annotated[int, msgspec.Meta(gt=0)], 3),
    (Annotated[int, ["unhashable"]], 3),
    (Reply, Reply(text="hi", tags=["a"])),
    (list[Reply], [Reply(text="hi"), Reply(text="ho", tokens=3)]),
    (Reply | None, Reply(text="hi")),
    (dict[str, Reply], {"a": Reply(text="hi")}),
    (Reply | Numbers, Numbers([1, 2])),
    (Reply | str, "plain"),
    (Numbers, Numbers([1, 2])),
    (
        Aliased,
        Aliased.model_validate(
            {"createdAt": datetime(2026, 1, 1), "link": LINK, "place": Path("a/b"), "more": {"x": 1}}
        ),
    ),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=plainly)
def test_a_value_of_its_declared_type_comes_back_equal_and_of_that_type(annotation: Any, value: Any) -> None:
    data, back = codec_for(annotation).roundtrip(value)

    assert back == value
    assert type(back) is type(value)
    assert Codec(annotation).decode(data) == value


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=plainly)
def test_a_state_of_its_declared_type_comes_back_from_builtins(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)

    data = codec.to_builtins(value)

    assert codec.from_builtins(decode(encode(data))) == value


def test_a_class_without_equality_comes_back_field_by_field() -> None:
    back = Codec(Unequal).roundtrip(Unequal("a", [1]))[1]

    assert (type(back), vars(back)) == (Unequal, {"name": "a", "parts": [1]})


@given(st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-5)))), st.timedeltas(), st.decimals())
def test_times_and_decimals_come_back_equal(when: datetime, span: timedelta, amount: Decimal) -> None:
    try:
        moved = when.astimezone(UTC)
    except OverflowError:
        return
    assert Codec(datetime).roundtrip(when)[1] == moved
    assert Codec(timedelta).roundtrip(span)[1] == span
    if not amount.is_snan():
        assert str(Codec(Decimal).roundtrip(amount)[1]) == str(amount)


def test_a_moment_that_utc_cannot_hold_is_refused() -> None:
    with pytest.raises(NotSerializable):
        Codec(datetime).roundtrip(datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))))


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, "three", "$"),
        (list[int], [1, "b"], "$[1]"),
        (Dog, Animal("Rex"), "$"),
        (Cart, {"items": [1]}, "$.items[0]"),
        (Annotated[int, msgspec.Meta(gt=0)], -1, "$"),
        (Reply, {"text": 3}, "$"),
        (list[Reply], [{"text": "a"}, {}], "$[1]"),
    ],
    ids=plainly,
)
def test_a_value_that_does_not_match_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        codec_for(annotation).roundtrip(value)

    assert caught.value.path == path


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Animal, Dog("Rex", ["sit"]), "$"),
        (Animal, Puppy("Rex"), "$"),
        (list[Animal], [Dog("Rex", ["sit"])], "$[0]"),
        (Row, {"id": 1, "more": 2}, "$"),
        (Cart, {"items": [], "tottal": 2}, "$"),
        (dict[str, Any], {"at": datetime(2026, 1, 1)}, "$.at"),
        (dict[str, Any], {"e": Mood.GOOD}, "$.e"),
        (dict, {"s": {1}}, "$.s"),
        (list, [Animal("Rex")], "$[0]"),
        (Note, Note("a", {"d": Decimal(1)}), "$.meta.d"),
        (list[Any], [Reply(text="a")], "$[0]"),
        (Reply, LongReply(text="a", rest="b"), "$"),
        (list[int], {1, 2}, "$"),
        (dict[str, object], {"a": {"b": UUID(int=1)}}, "$.a.b"),
    ],
    ids=plainly,
)
def test_what_the_declared_type_would_lose_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    codec = codec_for(annotation)

    with pytest.raises(NotSerializable) as live:
        codec.roundtrip(value)
    with pytest.raises(NotSerializable) as state:
        codec.to_builtins(value)

    assert (live.value.path, state.value.path) == (path, path)


class Percent(float):
    """What libraries do: `numpy.float64` is a float."""


class Markup(str):
    pass


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (float, Percent(0.5), 0.5),
        (float, 3, 3.0),
        (list[str], [Markup("a")], ["a"]),
        (dict[str, int], Counter("aab"), {"a": 2, "b": 1}),
        (dict, OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (str, Mood.GOOD, None),
        (Animal, {"name": "Rex"}, Animal("Rex")),
        (Cart, {"items": ["a"]}, Cart(["a"])),
        (set[int], [1, 1], {1}),
        (Reply, {"text": "a"}, Reply(text="a")),
    ],
    ids=plainly,
)
def test_a_declared_type_makes_of_builtins_and_subclasses_what_it_says(annotation: Any, value: Any, back: Any) -> None:
    if back is None:
        with pytest.raises(NotSerializable):
            codec_for(annotation).roundtrip(value)
    else:
        made = codec_for(annotation).roundtrip(value)[1]
        assert (made, type(made)) == (back, type(back))


def test_a_model_keeps_which_fields_were_set_and_what_was_made_for_it() -> None:
    reply = Reply(text="hi", tokens=0)
    reply.tags.append("changed in place")
    object.__setattr__(reply, "key", "unique")

    back = Codec(Reply).roundtrip(reply)[1]

    assert back == reply
    assert back.model_dump(exclude_unset=True).keys() == {"text", "tokens", "tags", "key"}
    assert Codec(Reply).roundtrip(Reply(text="hi"))[1].model_fields_set == {"text", "key"}


def test_a_secret_is_refused_instead_of_recorded_as_asterisks() -> None:
    with pytest.raises(NotSerializable, match="masked"):
        Codec(Login).encode(Login(password=pydantic.SecretStr("hunter2")))


@pytest.mark.parametrize(
    ("annotation", "remedy"),
    [
        (Animal | Dog, "tagged msgspec Structs"),
        (AsyncIterator[str], "the data behind"),
        (Callable[[], int], "Declare data"),
        (complex, "Declare data"),
        (list[Path], "Declare data"),
        ("Elsewhere", "Declare data"),
        (msgspec.Raw, "Declare data"),
    ],
    ids=plainly,
)
def test_a_type_that_cannot_be_recorded_is_refused_before_anything_runs(annotation: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        codec_for(annotation)


def test_a_codec_is_built_once() -> None:
    assert codec_for(dict[str, int]) is codec_for(dict[str, int])


@given(st.binary())
def test_decoding_foreign_bytes_gives_a_value_or_a_typed_error(data: bytes) -> None:
    for annotation in (Any, Animal, Reply, Reply | Numbers):
        try:
            codec_for(annotation).decode(data)
        except NotSerializable as error:
            assert error.path


def test_what_is_refused_is_named_with_its_article() -> None:
    with pytest.raises(NotSerializable, match=r"^An object cannot be recorded at \$"):
        Codec().encode(object())
    with pytest.raises(NotSerializable, match=r"^A complex cannot be recorded at \$\[0\]"):
        Codec().encode([1j])
