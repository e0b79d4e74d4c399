"""Keys: structural, deterministic, and never the same for two places."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from perdure.core import keys
from perdure.core.keys import Scope
from perdure.core.limits import KEY_CHARS_MAX

AWKWARD = st.text(st.sampled_from("a1/#=%~u2F\0é\ud800🦆"), max_size=6) | st.text(st.characters(), max_size=5)
LONG = st.sampled_from(["x" * 2000, "x" * 1999 + "y", "🦆" * 2000, "/" * 400, "~" * KEY_CHARS_MAX])
NAMES = AWKWARD | LONG
PROGRAM = st.recursive(
    st.lists(NAMES, max_size=4), lambda inner: st.lists(NAMES | st.tuples(inner), max_size=5), max_leaves=25
)
"""What one task does: a string calls a step of that name, a tuple starts a task that does what is in it."""


def run(program: object, scope: Scope, place: tuple[int, ...] = ()) -> Iterator[tuple[object, str]]:
    """Every call of a program as `(place, its key)`; a place is the path, the name and the repeat."""
    assert isinstance(program, list)
    seen: dict[str, int] = {}
    started = 0
    for action in program:
        if isinstance(action, str):
            seen[action] = seen.get(action, 0) + 1
            yield (place, action, seen[action]), scope.key(action)
        else:
            started += 1
            yield from run(action[0], scope.child(), (*place, started))


@given(PROGRAM, st.sets(NAMES, max_size=5))
def test_no_two_places_share_a_key(program: object, chosen: set[str]) -> None:
    places = dict(run(program, Scope.root())) | {name: keys.given(name) for name in chosen}

    assert len(set(places.values())) == len(places)
    assert all(0 < len(key) <= KEY_CHARS_MAX and "\0" not in key and key.encode() for key in places.values())


@given(PROGRAM)
def test_the_same_program_gives_the_same_keys(program: object) -> None:
    assert list(run(program, Scope.root())) == list(run(program, Scope.root()))


def test_keys_read_like_what_they_name() -> None:
    root = Scope.root()
    first, second = root.child(), root.child()

    assert [root.key("fetch"), root.key("fetch"), second.key("fetch")] == ["fetch", "fetch#2", "2/fetch"]
    assert [first.child().key("ask"), first.key("a/b#2"), root.key("")] == ["1/1/ask", "1/a%2Fb%232", "%"]
    assert [keys.given("call/7"), root.key("=call")] == ["=call/7", "%3Dcall"]


def test_a_scope_does_not_depend_on_what_its_siblings_do() -> None:
    def branches(order: list[int]) -> list[str]:
        scopes = [Scope.root()]
        scopes = [scopes[0].child() for _ in order]
        return [scopes[n].key("step") for n in order]

    assert sorted(branches([0, 1, 2])) == sorted(branches([2, 0, 1]))


def test_a_long_chain_of_tasks_has_short_paths() -> None:
    scope, seen = Scope.root(), set()
    for _ in range(5000):
        scope = scope.child()
        seen.add(scope.key("step"))

    assert len(seen) == 5000
    assert max(map(len, seen)) <= keys.PATH_CHARS_MAX + len("step")


def test_people_mean_a_step_by_its_key_before_its_own_key_before_its_name() -> None:
    own = keys.given("call/7%")

    assert keys.meant(["ask", "call/7%", own], key=own, name="ask") == own
    assert keys.meant(["ask", "call/7%"], key=own, name="ask") == "call/7%"
    assert keys.meant(["ask", "call"], key=own, name="ask") == "ask"
    assert keys.meant(["call/7%", "7"], key="call/7", name="ask") is None
