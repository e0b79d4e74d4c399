"""The client of a model's endpoint, over real HTTP."""

from __future__ import annotations

import asyncio

import pytest

from perdure.demo.model import (
    Endpoint,
    ModelClient,
    ModelError,
    ModelTimeout,
    ModelUnreachable,
    StreamBroken,
    endpoint_from,
)
from perdure.errors import UsageError
from tests.demo.endpoint import answer, scripted, stream


async def ask(*script: bytes | None, silence_timeout_s: float = 5, times: int = 1) -> tuple[list[str], list[str], str]:
    """Ask a scripted endpoint `times` times: the answers, the pieces heard, and the head of the first request."""
    heard: list[str] = []
    async with scripted(*script) as (served, endpoint):
        client = ModelClient(endpoint, silence_timeout_s=silence_timeout_s)
        try:
            answers = [await client.chat("Why?", max_tokens=9, on_text=heard.append) for _ in range(times)]
        finally:
            await client.close()
        assert served.asked[0]["model"] == "tiny"
        assert served.asked[0]["stream"] is True
        return answers, heard, served.headers[0]


def test_an_answer_arrives_in_pieces_and_as_a_whole() -> None:
    answers, heard, head = asyncio.run(ask(stream("Be", "cause", ".")))

    assert answers == ["Because."]
    assert heard == ["Be", "cause", "."]
    assert "authorization: bearer secret" in head


def test_a_429_carries_its_status_and_retry_after() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(answer("429 Too Many Requests", "slow down", "retry-after: 7")))

    assert caught.value.status_code == 429
    assert caught.value.headers["retry-after"] == "7"
    assert "slow down" in str(caught.value)


def test_a_500_carries_its_status() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(answer("500 Internal Server Error", "oh")))

    assert caught.value.status_code == 500


def test_a_404_says_how_to_name_another_model() -> None:
    with pytest.raises(ModelError, match="OPENAI_MODEL"):
        asyncio.run(ask(answer("404 Not Found", "no such model")))


def test_a_stream_that_is_cut_is_broken_and_keeps_what_had_come() -> None:
    with pytest.raises(StreamBroken) as caught:
        asyncio.run(ask(stream("Be", "cau", end="")))

    assert caught.value.partial == "Because"[:5]
    assert isinstance(caught.value, ConnectionError)


def test_a_stream_that_ends_with_a_reason_is_whole_without_done() -> None:
    end = 'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'

    answers, _, _ = asyncio.run(ask(stream("Be", end=end)))

    assert answers == ["Be"]


def test_an_error_inside_a_stream_is_a_failure_of_the_endpoint() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(stream("Be", end='data: {"error": {"message": "overloaded"}}\n\n')))

    assert caught.value.status_code == 500


def test_silence_is_a_timeout() -> None:
    with pytest.raises(ModelTimeout) as caught:
        asyncio.run(ask(None, silence_timeout_s=0.2))

    assert isinstance(caught.value, TimeoutError)


def test_nobody_there_is_a_connection_error() -> None:
    async def ask_nobody() -> None:
        client = ModelClient(Endpoint("http://127.0.0.1:9/v1", "tiny"))
        try:
            await client.chat("Why?", max_tokens=9)
        finally:
            await client.close()

    with pytest.raises(ModelUnreachable) as caught:
        asyncio.run(ask_nobody())

    assert isinstance(caught.value, ConnectionError)


def test_the_environment_names_the_endpoint() -> None:
    assert endpoint_from({}) is None
    assert endpoint_from({"OPENAI_API_KEY": "k"}) is None
    found = endpoint_from({"OPENAI_BASE_URL": "http://here/v1/", "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"})
    assert found == Endpoint("http://here/v1", "m", "k")
    assert "k" not in repr(found).replace("Endpoint", "")
    with pytest.raises(UsageError):
        endpoint_from({"OPENAI_BASE_URL": "here"})
