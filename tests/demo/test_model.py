"""The client of a model's endpoint, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
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
from perdure.testing import FakeModel, error, silence, stream


async def ask(line: Any, *, silence_timeout_s: float = 5) -> tuple[str, list[str]]:
    """Ask an endpoint that says this: the answer, and the pieces heard."""
    heard: list[str] = []
    model = FakeModel([line])
    async with model.serve() as url:
        client = ModelClient(Endpoint(url, "tiny"), silence_timeout_s=silence_timeout_s)
        try:
            answer = await client.chat("Why?", max_tokens=9, on_text=heard.append)
        finally:
            await client.close()
            assert model.prompts == ["Why?"]
            assert model.calls[0].request.options["model"] == "tiny"
        return answer, heard


async def ask_raw(body: str) -> tuple[str, str]:
    """Ask an endpoint that sends these very events: the answer, and the key that was shown."""
    keys: list[str] = []

    def send(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["authorization"])
        return httpx.Response(200, text=body)

    client = ModelClient(Endpoint("http://there/v1", "tiny", "secret"))
    shown = client.http.headers
    await client.http.aclose()
    client.http = httpx.AsyncClient(transport=httpx.MockTransport(send), headers=shown)
    try:
        return await client.chat("Why?", max_tokens=9), keys[0]
    finally:
        await client.close()


def test_an_answer_arrives_in_pieces_and_as_a_whole() -> None:
    answer, heard = asyncio.run(ask(stream("Be", "cause", ".")))

    assert answer == "Because."
    assert heard == ["Be", "cause", "."]


def test_a_429_carries_its_status_and_retry_after() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(error(429, "slow down", retry_after=7)))

    assert caught.value.status_code == 429
    assert caught.value.headers["retry-after"] == "7"
    assert "slow down" in str(caught.value)


def test_a_500_carries_its_status() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(error(500)))

    assert caught.value.status_code == 500


def test_a_404_says_how_to_name_another_model() -> None:
    with pytest.raises(ModelError, match="OPENAI_MODEL"):
        asyncio.run(ask(error(404)))


def test_a_stream_that_is_cut_is_broken_and_keeps_what_had_come() -> None:
    with pytest.raises(StreamBroken) as caught:
        asyncio.run(ask(stream("Be", "cau", cut=True)))

    assert caught.value.partial == "Because"[:5]
    assert isinstance(caught.value, ConnectionError)


def test_a_stream_that_ends_with_a_reason_is_whole_without_done() -> None:
    body = 'data: {"choices": [{"delta": {"content": "Be"}, "finish_reason": "length"}]}\n\n'

    assert asyncio.run(ask_raw(body)) == ("Be", "Bearer secret")


def test_a_stream_that_just_ends_is_broken() -> None:
    with pytest.raises(StreamBroken) as caught:
        asyncio.run(ask_raw('data: {"choices": [{"delta": {"content": "Be"}}]}\n\n'))

    assert caught.value.partial == "Be"


def test_an_error_inside_a_stream_is_a_failure_of_the_endpoint() -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(ask(stream("Be", error(529))))

    assert caught.value.status_code == 500


def test_silence_is_a_timeout() -> None:
    with pytest.raises(ModelTimeout) as caught:
        asyncio.run(ask(silence(), silence_timeout_s=0.2))

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
