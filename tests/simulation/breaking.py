"""What a mutation is: one thing in the runtime or in a store, broken on purpose for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from perdure.store.sqlite import transaction
from perdure.testing.simulation import StoreKind
from perdure.testing.simulation.orders import Theme

Breaking = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Something broken, and what a checker that is worth its name says to it."""

    name: str
    """What is broken, in a sentence."""
    expected: str
    """A pattern that one of the violations matches."""
    breaking: Breaking
    store: StoreKind = "memory"
    theme: Theme | None = None
    """What the worlds have to be about in which it shows."""

    def __str__(self) -> str:
        return self.name


def replaced(target: Any, attribute: str, by: Any) -> Breaking:
    """The attribute is something else."""
    return lambda: patch.object(target, attribute, by)


def wrapped(target: Any, attribute: str, around: Callable[..., Any]) -> Breaking:
    """The function is called through another, which gets the original first."""
    original = getattr(target, attribute)

    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return lambda: patch.object(target, attribute, call)


def together(*breakings: Breaking) -> Breaking:
    """All of them at once."""

    @contextmanager
    def breaking() -> Iterator[None]:
        with ExitStack() as stack:
            for each in breakings:
                stack.enter_context(each())
            yield

    return breaking


def statement(name: str, old: str, new: str) -> Breaking:
    """A statement of SQLite has other words."""

    @contextmanager
    def breaking() -> Iterator[None]:
        statements = transaction.STATEMENTS._statements
        right = statements[name]
        assert old in right.text, f"{name} has other words now: {right.text}"
        wrong = type(right)(right.name, right.doc, right.text.replace(old, new), right.parameters)
        with patch.dict(statements, {name: wrong}):
            _forget_texts()
            yield
        _forget_texts()

    return breaking


def _forget_texts() -> None:
    transaction.spread_text.cache_clear()
    transaction._packed.cache_clear()
