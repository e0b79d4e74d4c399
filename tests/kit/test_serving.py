"""The fake model behind its endpoint, asked by a real HTTP client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

import perdure
from perdure.core.transience import is_transient, retry_after_s
from perdure.testing import (
    FakeModel,
    disconnected,
    error,
    overloaded,
    rate_limited,
    reply,
    silence,
    stream,
    tool,
)
from tests.runtime.world import fresh_app, working


async def post(url: str, **body: Any) -> httpx.Response:
    """One request for a completion; raises for an answer of 400 or more."""
    async with httpx.AsyncClient(timeout=10) as client:
        response = await client.post(f"{url}/chat/completions", json={"model": "m", **body})
        return response.raise_for_status()


def asked(model: FakeModel, **body: Any) -> Any:
    """The document that the served model answers with."""

    async def main() -> Any:
        async with model.serve() as url:
            return (await post(url, messages=[{"role": "user", "content": "why?"}], **body)).json()

    return asyncio.run(main())


def streamed(model: FakeModel, heard: list[Any]) -> None:
    """Collect the events of a streamed answer."""

    async def main() -> None:
        async with model.serve() as url, httpx.AsyncClient() as client:
            body = {"stream": True, "messages": [{"role": "user", "content": "why?"}]}
            async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line:
                        data = line.removeprefix("data: ")
                        heard.append(data if data == "[DONE]" else json.loads(data))

    asyncio.run(main())


def failure_of(line: Any) -> Exception:
    with pytest.raises(httpx.HTTPError) as caught:
        asked(FakeModel([line]))
    return caught.value


def test_a_reply_is_a_chat_completion() -> None:
    model = FakeModel([reply("because", tool("look", {"at": "it"}, id="c1"))])

    document = asked(model, temperature=0)

    choice = document["choices"][0]
    assert (document["object"], document["model"], choice["finish_reason"]) == ("chat.completion", "m", "tool_calls")
    assert choice["message"]["content"] == "because"
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    ]
    assert model.prompts == ["why?"]
    assert model.calls[0].request.options == {"model": "m", "temperature": 0}


def test_a_stream_is_events_that_end_with_done() -> None:
    heard: list[Any] = []

    streamed(FakeModel([stream("a ", "b", tool("look", id="c1"))]), heard)

    deltas = [event["choices"][0]["delta"] for event in heard[:-1]]
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "a ", "b"]
    assert [call["id"] for delta in deltas for call in delta.get("tool_calls", ())] == ["c1"]
    assert heard[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert heard[-1] == "[DONE]"


def test_a_stream_that_is_cut_is_an_incomplete_body() -> None:
    heard: list[Any] = []

    with pytest.raises(httpx.RemoteProtocolError) as caught:
        streamed(FakeModel([stream("a ", "b", cut=True)]), heard)

    assert "".join(event["choices"][0]["delta"]["content"] for event in heard) == "a b"
    assert is_transient(caught.value)


def test_an_error_inside_a_stream_is_an_event() -> None:
    heard: list[Any] = []

    streamed(FakeModel([stream("a ", error(529, "too much"))]), heard)

    assert heard[-1] == {"error": {"message": "too much", "type": "server_error", "param": None, "code": 529}}


def test_a_429_carries_its_retry_after() -> None:
    refused = failure_of(rate_limited(7))

    assert is_transient(refused)
    assert retry_after_s(refused, now_us=0) == 7


def test_a_closed_connection_is_transient() -> None:
    assert is_transient(failure_of(disconnected()))


def test_an_unscripted_request_is_a_400_which_nobody_retries() -> None:
    async def main() -> httpx.Response:
        async with FakeModel().serve() as url, httpx.AsyncClient() as client:
            return await client.post(f"{url}/chat/completions", json={"messages": [{"role": "user", "content": "hm"}]})

    response = asyncio.run(main())

    assert response.status_code == 400
    assert "call 1 of the fake model is not scripted" in response.json()["error"]["message"]


def test_the_models_are_listed_and_another_path_is_a_404() -> None:
    async def main() -> tuple[Any, int]:
        async with FakeModel().serve() as url, httpx.AsyncClient() as client:
            return (await client.get(f"{url}/models")).json(), (await client.post(f"{url}/embeddings")).status_code

    listed, status = asyncio.run(main())

    assert [model["id"] for model in listed["data"]] == ["fake-model"]
    assert status == 404


def test_silence_lasts_until_the_client_gives_up_or_the_endpoint_closes() -> None:
    async def main() -> None:
        async with FakeModel([silence(), silence()]).serve() as url, httpx.AsyncClient(timeout=0.1) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{url}/chat/completions", json={"messages": "?"})
            waiting = asyncio.create_task(post(url, messages="?"))
            await asyncio.sleep(0)
        with pytest.raises(httpx.HTTPError):
            await waiting

    asyncio.run(main())


def test_a_served_model_is_retried_like_a_real_one() -> None:
    app = fresh_app()
    model = FakeModel([overloaded(retry_after=0.001), disconnected(), "at last"])

    @perdure.step(retry=perdure.Retry(delay_s=0))
    async def ask(url: str, prompt: str) -> str:
        answer = (await post(url, messages=[{"role": "user", "content": prompt}])).json()
        return str(answer["choices"][0]["message"]["content"])

    @app.agent
    async def agent(url: str) -> str:
        return await ask(url, "why?")

    async def main() -> Any:
        async with model.serve() as url, working(app):
            return await (await app.start(agent, url)).result(timeout=20)

    assert asyncio.run(main()) == "at last"
    assert model.prompts == ["why?"] * 3


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff"])
def test_what_is_no_request_is_answered_with_400(body: bytes) -> None:
    async def main() -> int:
        async with FakeModel(["hi"]).serve() as url, httpx.AsyncClient(timeout=10) as client:
            return (await client.post(f"{url}/chat/completions", content=body)).status_code

    assert asyncio.run(main()) == 400


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n", b"x" * 200_000]
)
def test_who_does_not_speak_http_is_hung_up_on(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> bytes:
        async with FakeModel(["hi"]).serve() as url, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            writer.write(head)
            try:
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

    assert asyncio.run(main()) == b""
    assert not caplog.records
