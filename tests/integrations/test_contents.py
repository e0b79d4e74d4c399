"""What comes from a broker may be anything: it is read as far as it can be, and concerns nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.integrations.contents import decoded, incoming
from perdure.integrations.timeouts import answering
from perdure.runtime.sinks import Incoming


@pytest.mark.parametrize(
    ("content", "data"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"tea", "tea"),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"[" * 3_000, "[" * 3_000),
        (b"[" * 3_000 + b"]" * 3_000, "[" * 3_000 + "]" * 3_000),
        (b"[" * 3_000 + b"\xff", b"[" * 3_000 + b"\xff"),
    ],
)
def test_content_is_json_or_text_or_bytes(content: bytes, data: Any) -> None:
    assert decoded(content) == data


async def reject() -> None: ...


@pytest.mark.parametrize(
    ("error", "unfit"),
    [
        (KeyError("id"), KeyError),
        (SystemExit(3), RuntimeError),
        (asyncio.CancelledError(), ConnectionAbortedError),
        (GeneratorExit(), RuntimeError),
    ],
)
def test_what_nothing_can_be_made_of_is_given_as_that(error: BaseException, unfit: type[Exception]) -> None:
    def make() -> Incoming:
        raise error

    async def main() -> Incoming:
        return incoming(make, name="number 7", reject=reject)

    given = asyncio.run(main())
    assert (given.id, given.reject) == ("number 7", reject)
    assert type(given.unfit) is unfit


def test_a_time_out_says_whose_it_was() -> None:
    with pytest.raises(TimeoutError, match="the broker did not answer within 2 s"), answering("the broker", 2.0):
        raise TimeoutError
    with pytest.raises(TimeoutError, match="its own words"), answering("the broker", 2.0):
        raise TimeoutError("its own words")
