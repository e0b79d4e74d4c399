"""The cases: forty failures that were reported of other systems, restated for this one, and where each is proved.

A case that concerns what is built is carried by a test: a function named `test_cNN_…` (`test_c06_c31_…` carries two).
So `pytest -k c23` runs it. A case that waits for what is not built yet says for what; when that is built and the case
gets its test, it leaves the list here, or this file fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.house import tree

FIRST, LAST = 1, 40

NAME = re.compile(r"test((?:_c\d\d)+)_")


@dataclass(frozen=True)
class Case:
    """What is given and happens, and the part of it that waits for something."""

    what: str
    waits_for: str = ""


PROVED = {
    1: Case("the database dies in the middle of a take-over of many runs"),
    2: Case("an old process drains while a new one starts under the same name"),
    3: Case("a worker drains for longer than its lease"),
    4: Case("ten processes start one key at once, and ten more while it runs"),
    5: Case("cancel and complete race"),
    6: Case("a step blocks the event loop for three leases"),
    7: Case("a proxy swallows a listener's packets"),
    8: Case("SIGTERM with a hundred runs claimed and four of them in their bodies"),
    9: Case("a graceful shutdown while a run waits for a person"),
    10: Case("workers whose clocks are ten minutes off, and a machine whose clock steps"),
    11: Case("a process recovers and executes what it has just started itself"),
    12: Case("a connection is lost after COMMIT and before its answer"),
    13: Case("three steps under gather, and a crash after each prefix"),
    14: Case("handles are dropped, and garbage is collected all the time"),
    15: Case("an exception whose constructor takes keyword-only arguments"),
    16: Case("values, keys, error texts and tags that hardly anybody can keep"),
    17: Case("a hundred commits share a batch, and one is unstorable"),
    18: Case("large payloads and long names, beside a notification's limit in bytes"),
    19: Case("a crash in the middle of every attempt"),
    20: Case("a wait times out, then a crash, then the same wait again"),
    21: Case("two open questions are answered in reverse order"),
    22: Case("producers start overlapping keys in opposite orders"),
    23: Case("kill -9 between any two moves of a slot", waits_for="flow control: a limit that workers share"),
    24: Case("a 429 with a Retry-After", waits_for="flow control: runs that share the limit"),
    25: Case("five connections and five hundred waits"),
    26: Case("a fresh database fills fast, without statistics"),
    29: Case("everything behind a transaction pooler"),
    31: Case("a synchronous call of many leases in an async step"),
    32: Case("a charge succeeds, the model call after it fails, the agent is tried again"),
    33: Case("a message comes while an approval is open"),
    35: Case("an approval comes three ways in one second", waits_for="the dashboard: the page is one of the ways"),
    36: Case("stop is pressed during the first of five effects"),
    37: Case("a cap, and children whose estimates exceed it together"),
    38: Case("a step is silent for ten minutes; a run kills its workers"),
    39: Case("usage is added up across a crash"),
    40: Case("a child dies silently"),
}
"""Each is carried by a test."""

LATER = {
    27: Case("cron over a change of the hour", waits_for="schedules"),
    28: Case("a weekly schedule, restarted daily", waits_for="schedules"),
    30: Case("a slow run crosses its schedule's tick", waits_for="schedules"),
    34: Case("the provider's quota ends in the middle of 108 children", waits_for="flow control"),
}
"""None is carried by a test yet."""


def carried() -> dict[int, set[str]]:
    """The tests that carry each case's number, as `file::function`."""
    found: dict[int, set[str]] = {}
    for path in tree.files_under(tree.ROOT / "tests", ".py"):
        for name in collected(tree.parse(path)) if path.name.startswith("test_") else ():
            if match := NAME.match(name):
                for number in re.findall(r"\d\d", match[1]):
                    found.setdefault(int(number), set()).add(f"{tree.name(path)}::{name}")
    return found


def collected(module: ast.Module) -> Iterator[str]:
    """The functions that pytest collects: at the top of a module, and in its classes named `Test…`."""
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                yield name
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef))


def test_every_case_is_proved_or_waits_for_something_named() -> None:
    assert sorted([*PROVED, *LATER]) == list(range(FIRST, LAST + 1)), "each case stands in one list"
    assert [number for number, case in LATER.items() if not case.waits_for] == []


def test_every_case_that_concerns_what_is_built_is_carried_by_a_test() -> None:
    assert sorted(set(PROVED) - set(carried())) == []


def test_a_case_that_has_a_test_has_left_the_list_of_those_that_wait() -> None:
    found = carried()
    assert {number: found[number] for number in LATER if number in found} == {}
    assert sorted(set(found) - set(PROVED) - set(LATER)) == [], "no such case"
