"""`perdure.testing`: its names, and what importing it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import perdure.testing


@pytest.mark.parametrize("name", perdure.testing.__all__)
def test_a_public_name_exists_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(perdure.testing, name))


def test_another_name_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.testing.nothing


def test_importing_the_kit_loads_none_of_it() -> None:
    script = "import perdure.testing, sys; print(*sorted(m for m in sys.modules if m.startswith('perdure.testing.')))"

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.split() == []
