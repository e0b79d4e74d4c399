"""The public names: what other people's code relies on, no more and no less."""

from __future__ import annotations

import inspect

import perdure
from perdure import errors
from tests.house import tree

VERBS = {
    "App", "Again", "Retry", "Handle", "RunInfo", "InterruptInfo", "MessageInfo", "Child", "Default", "step", "now",
    "random", "uuid4", "current", "extend_timeout", "sleep", "sleep_until", "timeout", "interrupt", "receive", "send",
    "call", "start", "effect", "effect_key", "compensate", "Happened", "DidNotHappen", "StillUnknown", "EffectInfo",
    "deliver", "Sink", "Outgoing", "Source", "Incoming", "DeliveryInfo", "meter", "UsageInfo", "Budget", "Cost",
    "BudgetInfo", "transaction", "Transaction",
}  # fmt: skip
"""What an agent and its caller use today."""

LATER = {"emit"}
"""Names that are kept free for what is coming: nothing else may take them."""

ERRORS = {
    name
    for name, thing in vars(errors).items()
    if isinstance(thing, type) and issubclass(thing, BaseException) and thing.__module__ == errors.__name__
}


def test_the_public_names_are_those_of_the_contract() -> None:
    public = set(perdure.__all__)
    extra = public - VERBS - ERRORS - LATER - {"__version__"}
    missing = (VERBS | ERRORS) - public
    assert (sorted(missing), sorted(extra)) == ([], [])


def test_every_public_name_exists_and_says_what_it_is() -> None:
    silent = [
        name for name in perdure.__all__ if callable(thing := getattr(perdure, name)) and not inspect.getdoc(thing)
    ]
    assert silent == []


def test_every_error_says_when_it_is_raised() -> None:
    silent = [name for name in ERRORS if not vars(getattr(errors, name)).get("__doc__")]
    assert silent == []


def test_the_reference_names_every_error() -> None:
    page = (tree.ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert sorted(name for name in ERRORS if f"`{name}`" not in page) == []
