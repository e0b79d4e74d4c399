"""The fake model, in this process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure import Retry, RunFailed, UsageError
from perdure.core.retry import RetryIn, Stop, decide
from perdure.core.transience import is_transient
from perdure.testing import (
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
from tests.runtime.world import fresh_app, result_of

NOW_US = 1_800_000_000_000_000


def said(model: FakeModel, *prompts: Any) -> list[Reply]:
    """What the model says to these, one after the other."""

    async def main() -> list[Reply]:
        return [await model.complete(prompt) for prompt in prompts]

    return asyncio.run(main())


def failure_of(line: Any) -> BaseException:
    """What a line of a script raises."""
    with pytest.raises(BaseException) as caught:
        said(FakeModel([line]), "hello")
    return caught.value


def test_a_script_is_said_in_order_and_what_was_asked_is_remembered() -> None:
    model = FakeModel(["one", reply("two")])

    heard = said(model, "first", [{"role": "system", "content": "be kind"}, {"role": "user", "content": "second"}])

    assert heard == [Reply("one"), Reply("two")]
    assert model.prompts == ["first", "second"]
    assert (model.count, model.left) == (2, 0)
    assert model.calls[0].request.step is None


def test_options_by_name_are_remembered_and_messages_may_be_one_of_them() -> None:
    model = FakeModel(["yes"])

    asyncio.run(model.complete(model="small", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]))

    assert model.prompts == ["hi"]
    assert model.calls[0].request.options == {"model": "small"}


def test_what_was_asked_stays_what_it_was_when_the_asker_goes_on_with_its_list() -> None:
    model = FakeModel(["one", "two"])
    messages = [{"role": "user", "content": "first"}]

    said(model, messages)
    messages[0]["content"] = "changed"
    messages.append({"role": "assistant", "content": "one"})
    said(model, messages)

    assert model.prompts == ["first", "one"]
    assert model.calls[0].request.messages == [{"role": "user", "content": "first"}]


def test_a_tool_call_is_data_with_an_id_that_depends_on_the_request_alone() -> None:
    line = reply("let me see", tool("search", {"q": "tea"}), tool("search", {"q": "tea"}))

    first, again, other = (said(FakeModel([line]), prompt)[0] for prompt in ("tea?", "tea?", "coffee?"))

    assert (first.text, first.finish) == ("let me see", "tool_calls")
    assert [(call.name, call.arguments) for call in first.tools] == [("search", {"q": "tea"})] * 2
    assert first == again
    assert len({call.id for each in (first, other) for call in each.tools}) == 4


def test_an_id_in_the_script_stays() -> None:
    assert said(FakeModel([tool("search", id="call_1")]), "?")[0].tools == (ToolCall("search", {}, "call_1"),)


@pytest.mark.parametrize("line", [rate_limited(), overloaded(), error(500), error(503), timeout(), disconnected()])
def test_what_may_go_away_is_transient(line: Any) -> None:
    assert is_transient(failure_of(line))


@pytest.mark.parametrize("line", [error(400), error(401), error(404), ValueError("no")])
def test_what_stays_is_final(line: Any) -> None:
    assert decide(Retry(), attempt=1, error=failure_of(line), random=0.5, now_us=NOW_US) == Stop("final")


@pytest.mark.parametrize(
    "retry_after", [30, 30.0, datetime.fromtimestamp(NOW_US / 1e6, UTC) + timedelta(seconds=30)], ids=str
)
def test_a_retry_after_is_honoured_as_seconds_and_as_a_date(retry_after: float | datetime) -> None:
    refused = failure_of(rate_limited(retry_after))

    decision = decide(Retry(jitter=0), attempt=1, error=refused, random=0.5, now_us=NOW_US)

    assert decision == RetryIn(30.0)


def test_a_refusal_looks_like_a_client_s_error() -> None:
    refused: Any = failure_of(error(529, "too many tea drinkers", retry_after=2))

    assert (refused.status_code, refused.response.status_code, refused.response.headers["retry-after"]) == (
        529,
        529,
        "2",
    )
    assert "too many tea drinkers" in str(refused)


def test_a_stream_comes_in_pieces_and_is_whole_at_its_end() -> None:
    async def main() -> tuple[list[str], Reply | None, Reply | None]:
        streaming = FakeModel([stream("a ", "b ", "c", tool("stop", id="x"))]).stream("go")
        before = streaming.reply
        return [piece async for piece in streaming], before, streaming.reply

    assert asyncio.run(main()) == (["a ", "b ", "c"], None, reply("a b c", tool("stop", id="x")))


def test_a_stream_that_is_cut_breaks_after_its_last_piece() -> None:
    heard: list[str] = []

    async def main() -> None:
        async for piece in FakeModel([stream("a ", "b", cut=True)]).stream("go"):
            heard.append(piece)

    with pytest.raises(ConnectionError, match="broke") as caught:
        asyncio.run(main())
    assert heard == ["a ", "b"]
    assert caught.value.partial == "a b"  # type: ignore[attr-defined]
    assert is_transient(caught.value)


def test_who_does_not_stream_gets_the_whole_stream_or_its_break() -> None:
    assert said(FakeModel([stream("a ", "b")]), "go") == [Reply("a b")]
    assert is_transient(failure_of(stream("a ", cut=True)))


def test_a_reply_can_be_streamed_too() -> None:
    async def main() -> list[str]:
        return [piece async for piece in FakeModel(["whole"]).stream("go")]

    assert asyncio.run(main()) == ["whole"]


def test_silence_ends_with_the_one_who_waits() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.01):
            await FakeModel([silence()]).complete("anybody?")

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_slow_comes_later_on_the_loop_s_clock() -> None:
    async def main() -> tuple[Reply, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        heard = await FakeModel([slow(0.02, "tea")]).complete("?")
        return heard, loop.time() - began

    heard, took_s = asyncio.run(main())
    assert heard == Reply("tea")
    assert took_s >= 0.02


def test_when_goes_before_the_order_and_is_not_used_up() -> None:
    model = FakeModel(
        ["first", when("weather", "sunny"), when(lambda asked: asked.options.get("x") == 1, "one"), "last"]
    )

    heard = said(model, "the weather?", "hello", "weather again?", "bye")

    assert [each.text for each in heard] == ["sunny", "first", "sunny", "last"]
    assert asyncio.run(model.complete("?", x=1)) == Reply("one")


def test_when_can_be_limited() -> None:
    model = FakeModel([when("a", rate_limited(), times=1), when("a", "fine")])

    with pytest.raises(Exception, match="429"):
        said(model, "a")
    assert said(model, "a", "a") == [Reply("fine")] * 2


def test_a_line_may_be_a_function_of_the_request() -> None:
    model = FakeModel(when("", lambda asked: asked.text.upper()))

    assert [each.text for each in said(model, "tea", "milk")] == ["TEA", "MILK"]


def test_a_call_that_is_not_scripted_says_which_one_it_is() -> None:
    with pytest.raises(Unscripted, match=r"call 2 .* all its lines are said \(1 so far\).*'and now\?'"):
        said(FakeModel(["one"]), "hello", "and now?")


def test_a_repeated_request_without_a_line_is_told_about_by_request() -> None:
    with pytest.raises(Unscripted, match=r"Call 1 asked the same.*by_request=True"):
        said(FakeModel(["one"]), "hello", "hello")


def test_what_is_no_line_is_refused() -> None:
    with pytest.raises(perdure.UsageError, match="no line of a script"):
        said(FakeModel([3]), "hello")  # type: ignore[list-item]


def test_by_request_the_same_request_has_the_same_reply_and_failures_are_not_remembered() -> None:
    model = FakeModel([overloaded(), "plan", "answer"], by_request=True)

    with pytest.raises(Exception, match="529"):
        said(model, "plan?")
    heard = said(model, "plan?", "plan?", "answer?", "plan?")

    assert [each.text for each in heard] == ["plan", "plan", "answer", "plan"]


def test_as_a_step_it_is_retried_and_recorded() -> None:
    app = fresh_app()
    model = FakeModel([overloaded(retry_after=0.001), reply("to search", tool("search", {"q": "tea"})), "done"])
    ask = perdure.step(model.complete, name="ask", retry=Retry(delay_s=0))

    @app.agent
    async def agent() -> list[Reply]:
        return [await ask("what now?"), await ask("and now?")]

    first, second = result_of(app, agent)

    assert [call.name for call in first.tools] == ["search"]
    assert second == Reply("done")
    assert [(call.request.step, call.request.attempt) for call in model.calls] == [("ask", 1), ("ask", 2), ("ask#2", 1)]


def test_the_model_itself_is_a_step_s_body() -> None:
    app = fresh_app()
    ask = perdure.step(FakeModel(["tea"]), name="ask")

    @app.agent
    async def agent() -> str:
        return str((await ask("what?")).text)

    assert result_of(app, agent) == "tea"


def test_an_unscripted_call_in_a_step_fails_the_run_at_once() -> None:
    app = fresh_app()
    model = FakeModel()
    ask = perdure.step(model.complete, name="ask")

    @app.agent
    async def agent() -> str:
        return (await ask("what?")).text

    with pytest.raises(RunFailed, match=r"call 1 of the fake model is not scripted.*by step 'ask', try 1"):
        result_of(app, agent)
    assert model.count == 1


def test_a_script_by_step_gives_each_try_of_each_step_its_line_whatever_ran_before() -> None:
    app = fresh_app()
    model = FakeModel({"plan": [rate_limited(0.001), "a plan"], "note#2": "the second", "note": "a note"})
    plan = perdure.step(model.complete, name="plan", retry=Retry(delay_s=0))
    note = perdure.step(model.complete, name="note")

    @app.agent
    async def agent() -> list[str]:
        planned = await plan("plan?")
        notes = [await note(f"note {n}?") for n in range(3)]
        branch = await asyncio.gather(note("in a branch?"))
        return [each.text for each in (planned, *notes, *branch)]

    assert result_of(app, agent) == ["a plan", "a note", "the second", "a note", "a note"]


def test_a_script_by_step_refuses_who_is_none() -> None:
    with pytest.raises(Unscripted, match=r"outside of a step"):
        said(FakeModel({"ask": "tea"}), "hello")


def test_a_script_by_step_has_no_when() -> None:
    with pytest.raises(perdure.UsageError, match="chosen by its step already"):
        FakeModel({"ask": [when("a", "b")]})


def test_a_script_by_step_knows_a_call_with_a_key_of_its_own_by_its_name_and_by_that_key() -> None:
    app = fresh_app()
    model = FakeModel({"ask": "by name", "call/7": "by key"})
    ask = perdure.step(model.complete, name="ask")

    @app.agent
    async def agent() -> list[str]:
        return [(await ask.options(key=key)("tea")).text for key in ("call/6", "call/7")]

    assert result_of(app, agent) == ["by name", "by key"]


@pytest.mark.parametrize(
    "wrong", [lambda: reply(7), lambda: reply("a", None), lambda: stream("a", 7), lambda: stream(error(500), "a")]
)
def test_what_a_model_cannot_say_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()


@pytest.mark.parametrize("after", [30, 2.5, 1_000_000, 123_456.75])
def test_a_retry_after_is_sent_to_the_second(after: float) -> None:
    refused = failure_of(rate_limited(retry_after=after))

    header = refused.response.headers["retry-after"]  # type: ignore[attr-defined]
    assert float(header) == after and "e" not in header and (after % 1 or header.isdigit())


@pytest.mark.parametrize("wrong", [-1, "soon", float("nan"), float("inf")])
def test_a_wait_that_is_none_is_refused_where_it_is_written(wrong: Any) -> None:
    for word in (lambda: rate_limited(retry_after=wrong), lambda: slow(wrong, "late")):
        with pytest.raises(UsageError):
            word()


def test_the_model_takes_messages_that_are_no_data() -> None:
    class Message:
        content = "hello"

    model = FakeModel(["hi"])
    assert said(model, [Message()]) == [Reply("hi")]
    assert model.prompts == ["hello"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: error("429"),  # type: ignore[arg-type]
        lambda: error(429.0),  # type: ignore[arg-type]
        lambda: error(True),
        lambda: error(500, 3),  # type: ignore[arg-type]
        lambda: rate_limited("soon"),
        lambda: tool("search", "tea"),  # type: ignore[arg-type]
        lambda: tool(3),  # type: ignore[arg-type]
        lambda: when(3, "tea"),  # type: ignore[arg-type]
        lambda: when("tea", 3),  # type: ignore[arg-type]
        lambda: when("tea", "milk", times=0),
        lambda: when("tea", when("milk", "?")),  # type: ignore[arg-type]
        lambda: slow(1, 3),  # type: ignore[arg-type]
        lambda: slow(-1, "tea"),
        lambda: reply(3),  # type: ignore[arg-type]
        lambda: reply(stream("a")),  # type: ignore[arg-type]
        lambda: FakeModel({3: "tea"}),  # type: ignore[dict-item]
        lambda: FakeModel({"ask": [3]}),  # type: ignore[list-item]
        lambda: FakeModel([3]),  # type: ignore[list-item]
        lambda: FakeModel(None),  # type: ignore[arg-type]
        lambda: FakeModel([["tea"]]),  # type: ignore[list-item]
    ],
)
def test_what_is_no_word_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_a_time_to_wait_for_may_be_a_timedelta_or_a_text() -> None:
    for after in (timedelta(seconds=90), "90s", "1m30s", 90):
        refused: Any = failure_of(rate_limited(after))
        assert refused.response.headers["retry-after"] == "90"


def test_a_class_of_exceptions_is_raised_as_one() -> None:
    assert repr(failure_of(ConnectionError)) == "ConnectionError()"


def test_a_line_may_be_an_async_function_of_the_request() -> None:
    async def answer(asked: Any) -> Any:
        await asyncio.sleep(0)
        return slow(0, reply(asked.text.upper()))

    async def main() -> tuple[Reply, list[str], list[bool]]:
        model = FakeModel([answer, answer, when("late", slow(0, answer))], by_request=True)
        whole = await model.complete("tea")
        pieces = [piece async for piece in model.stream("milk")]
        await model.complete("late")
        await model.complete("tea")
        return whole, pieces, [call.said is not None for call in model.calls]

    assert asyncio.run(main()) == (Reply("TEA"), ["MILK"], [True] * 4)


def test_what_an_async_function_makes_is_a_line_or_refused() -> None:
    async def answer(asked: Any) -> Any:
        return 3

    with pytest.raises(UsageError, match="no line of a script"):
        said(FakeModel([answer]), "tea")


def test_a_script_of_whens_that_do_not_match_says_so_and_shows_the_message() -> None:
    with pytest.raises(Unscripted, match=r"none of its when\(…\) lines is for this message.*'and milk\?'"):
        said(FakeModel([when("tea", "yes")]), "tea?", "and milk?")
    with pytest.raises(
        Unscripted, match=r"all its lines are said \(1 so far\), and none of its when\(…\) lines is for"
    ):
        said(FakeModel(["one", when("tea", "yes")]), "and milk?", "and sugar?")


def test_a_repeated_request_is_told_about_scripts_for_it() -> None:
    with pytest.raises(Unscripted, match=r"Call 1 asked the same.*by_request=True.*script by step, FakeModel\(\{"):
        said(FakeModel(["one"]), "hello", "hello")
    model = FakeModel([overloaded()])
    with pytest.raises(Exception, match="529"):
        said(model, "hello")
    with pytest.raises(Unscripted, match=r"Call 1 asked the same and failed: the script needs a line for the next try"):
        said(model, "hello")
