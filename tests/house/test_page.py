"""The page: how long it may be, what it opens with, and what it must not contain."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tests.house import tree

FILE_LINES_MAX = 500
"""Past this, look for the missing noun."""

FUNCTION_LINES_MAX = 60
"""Twice what fits comfortably on a screen: the docstring counts, the decorators do not."""

POSITIONAL_MAX = 6
"""Arguments by position, `self` included: after two, prefer keywords; after five, nobody remembers the order."""

LONG_FILES: dict[str, str] = {}
"""File: why it is better in one piece."""

LONG_FUNCTIONS: dict[str, str] = {}
"""`file::function`: why it is better in one piece."""

BROAD_HANDLERS: dict[str, str] = {
    "src/perdure/cli/__init__.py::main": "the end of a command: a defect becomes a traceback and its exit code",
    "src/perdure/runtime/group.py::GroupCommit._flush_one": "the loop's edge: whoever waits for the batch is told",
    "src/perdure/runtime/keeper.py::Keeper.run": "the service's edge: the worker is told that its lease is lost",
    "src/perdure/runtime/service.py::serve": "the one place where a loop backs off and goes on",
    "src/perdure/runtime/starts.py::Company._write_batch": "the batch's edge: each item is told its own failure",
    "src/perdure/runtime/stepping.py::_attempt": "the edge of user code: a step's body",
    "src/perdure/runtime/superstep.py::_ending_of": "the edge of user code: the agent",
    "src/perdure/runtime/tenure.py::Tenure._execute": "the loop's edge: one run breaks off, the worker goes on",
    "src/perdure/store/sqlite/line.py::attempt": "the loop's edge: whoever waits is told, and the thread lives on",
    "src/perdure/telemetry.py::emit": "the edge of user code: a handler",
}
"""`file::function`: the edge it stands at. A handler may say so itself, in a comment on its line."""

SLEEPS: dict[str, str] = {
    "tests/runtime/test_steps.py::test_keys_follow_the_structure_and_not_the_order_of_finishing.pause": "work",
}
"""`file::function`: what takes the time. A call may say so itself, in a comment on its line. (`tests/support` looks
again and again where another process cannot be awaited.)"""

LEFT_TO_OTHERS: dict[str, str] = {
    "src/perdure/testing/conformance/harness.py": "a store's author fills it in",
}
"""File: who completes what it leaves open."""

COMMENT_WORDS_MIN = 4

Node = TypeVar("Node", bound=ast.AST)

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b|raise Not" + r"ImplementedError")


def broad_handlers(path: Path) -> Iterator[str]:
    """Functions with `except Exception`, `except BaseException` or a bare `except` that does not re-raise."""
    for function, node in tree.functions(tree.parse(path)):
        for handler in own(node, ast.ExceptHandler):
            caught = ast.unparse(handler.type) if handler.type else "BaseException"
            broad = re.search(r"\b(Base)?Exception\b", caught)
            raises_again = any(isinstance(statement, ast.Raise) for statement in handler.body[-1:])
            if broad and not raises_again and not says_why(path, handler.lineno):
                yield f"{tree.name(path)}::{function}"


def sleeps(path: Path) -> Iterator[str]:
    """Functions that call `time.sleep` or `asyncio.sleep` with anything but a plain 0."""
    for function, node in tree.functions(tree.parse(path)):
        for call in own(node, ast.Call):
            asleep = ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep", "anyio.sleep"}
            yields = [ast.unparse(argument) for argument in call.args] == ["0"]
            if asleep and not yields and not says_why(path, call.lineno):
                yield f"{tree.name(path)}::{function}"


def says_why(path: Path, line: int) -> bool:
    """Whether the line ends in a comment of some words."""
    comment = path.read_text(encoding="utf-8").splitlines()[line - 1].partition("  # ")[2]
    return len(comment.split()) >= COMMENT_WORDS_MIN


def own(function: ast.AST, kind: type[Node]) -> Iterator[Node]:
    """Nodes of a kind inside a function, without those of the functions inside it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, kind):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from own(child, kind)


def check(found: Iterator[str], allowed: dict[str, str]) -> None:
    """What is found is allowed, and what is allowed is found: an allowance nobody uses goes."""
    places = set(found)
    assert sorted(places - set(allowed)) == []
    assert sorted(set(allowed) - places) == [], "no longer needed"


def test_a_file_is_about_one_noun() -> None:
    long = (tree.name(path) for path in tree.python_files() if count_lines(path) > FILE_LINES_MAX)
    check(long, LONG_FILES)


def test_a_function_fits_on_a_screen() -> None:
    long = (
        f"{tree.name(path)}::{function}"
        for path in tree.python_files()
        for function, node in tree.functions(tree.parse(path))
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    )
    check(long, LONG_FUNCTIONS)


def test_nobody_must_remember_the_order_of_six_arguments() -> None:
    crowded = [
        f"{tree.name(path)}::{function}"
        for path in tree.files_under(tree.PACKAGE, ".py")
        for function, node in tree.functions(tree.parse(path))
        if not node.name.startswith("_") and len(node.args.posonlyargs) + len(node.args.args) > POSITIONAL_MAX
    ]
    assert crowded == []


def test_exception_is_caught_only_where_user_code_begins() -> None:
    check((place for path in tree.files_under(tree.PACKAGE, ".py") for place in broad_handlers(path)), BROAD_HANDLERS)


def test_tests_await_events_and_do_not_sleep() -> None:
    tests = [path for path in tree.python_files() if path.name.startswith("test_")]
    check((place for path in tests for place in sleeps(path)), SLEEPS)


def test_a_module_opens_with_prose() -> None:
    bare = [
        tree.name(path)
        for path in tree.python_files()
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(tree.parse(path))
    ]
    assert bare == []


def test_annotations_are_never_evaluated() -> None:
    missing = [
        tree.name(path)
        for path in tree.files_under(tree.PACKAGE, ".py")
        if len(tree.parse(path).body) > 1 and "from __future__ import annotations" not in path.read_text("utf-8")
    ]
    assert missing == []


def test_nothing_is_left_for_later() -> None:
    left = [
        f"{tree.name(path)}:{number}: {line.strip()}"
        for path in tree.files()
        if path.suffix in {".py", ".sql", ".md", ".toml"} and tree.name(path) not in LEFT_TO_OTHERS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert left == []


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
