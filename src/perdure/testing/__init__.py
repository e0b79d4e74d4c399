"""What tests of agents are made of, and the tests that a store must pass.

- `rehearse` and the words for faults: your own agents in virtual time, crashed where a test wants it (`rehearsal/`).
- `FakeModel` and the words of its scripts: a language model that says what a test wants (`fake_model/`).
- `record_history`, `History`, `replay`: a run from production against the code of today (`replaying/`).
- `conformance/`: the meaning of a store, as tests.

Importing this loads none of it: a name is looked up where it lives when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from perdure.testing.fake_model import (
        FakeModel,
        Reply,
        ToolCall,
        Unscripted,
        disconnected,
        error,
        overloaded,
        rate_limited,
        reply,
        silence,
        slow,
        stream,
        timeout,
        tool,
        when,
    )
    from perdure.testing.rehearsal import (
        NeverEnded,
        Rehearsal,
        answer_step,
        crash_after,
        crash_before,
        crash_in,
        fail_step,
        rehearse,
        slow_step,
    )
    from perdure.testing.replaying import History, Replayed, record_history, replay

__all__ = [
    "FakeModel",
    "History",
    "NeverEnded",
    "Rehearsal",
    "Replayed",
    "Reply",
    "ToolCall",
    "Unscripted",
    "answer_step",
    "crash_after",
    "crash_before",
    "crash_in",
    "disconnected",
    "error",
    "fail_step",
    "overloaded",
    "rate_limited",
    "record_history",
    "rehearse",
    "replay",
    "reply",
    "silence",
    "slow",
    "slow_step",
    "stream",
    "timeout",
    "tool",
    "when",
]

HOMES: Final = {
    "rehearsal": {
        "NeverEnded", "Rehearsal", "answer_step", "crash_after", "crash_before", "crash_in", "fail_step", "rehearse",
        "slow_step",
    },
    "replaying": {"History", "Replayed", "record_history", "replay"},
}  # fmt: skip
"""By package, the names that live there; all others are the fake model's."""


def __getattr__(name: str) -> Any:
    """A public name, from the package that it lives in."""
    if name not in __all__:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    from importlib import import_module

    home = next((package for package, names in HOMES.items() if name in names), "fake_model")
    return getattr(import_module(f"perdure.testing.{home}"), name)
