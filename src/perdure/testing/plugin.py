"""pytest fixtures, there wherever perdure is installed: `rehearse` puts an app on a stage until the test ends.

    def test_an_order_survives_a_crash(rehearse):
        stage = rehearse(app, crash_after("search"))
        assert stage.run(order, "tea") == "receipt 1"

That a fault of the stage never struck fails the test at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.testing.rehearsal import Fault, Rehearsal


@pytest.fixture
def rehearse() -> Iterator[Callable[..., Rehearsal]]:
    """`rehearse(app, *faults, deployment=…, seed=…)`: the stage, set until the end of the test."""
    from perdure.testing.rehearsal import rehearse as set_stage

    with ExitStack() as stages:

        def rehearse(app: App, *faults: Fault, **options: Any) -> Rehearsal:
            return stages.enter_context(set_stage(app, *faults, **options))

        yield rehearse
