"""`python -m perdure.testing.simulation`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from perdure.testing.simulation.__main__ import main


@pytest.fixture(autouse=True)
def logs_afterwards() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def test_seeds_are_counted_with_their_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--first", "7"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("3 seeds on memory in ") and "none went wrong" in told
    assert "hint" in told


def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--story", "--store", "sqlite"]) == 0
    told = capsys.readouterr().out
    assert "register w" in told and "seed 7 on sqlite: well" in told
