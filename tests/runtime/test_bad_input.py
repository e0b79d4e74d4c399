"""Nonsense at the public entries: a typed error with its remedy, and nothing written."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import perdure
from perdure import UnknownAgent, UsageError
from perdure.client.handles import RunHandle
from tests.runtime.world import fresh_app, working


def deep() -> Any:
    """A list that is nested deeper than the stack."""
    value: list[Any] = []
    for _ in range(3_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda app, agent: app.start("nobody"), UnknownAgent, "registered are: agent"),
        (lambda app, agent: app.start(agent), UsageError, "n"),
        (lambda app, agent: app.start(agent, 1, 2), UsageError, "agent"),
        (lambda app, agent: app.start(agent, object()), UsageError, "recorded|declared"),
        (lambda app, agent: app.start(agent, 1, thread_id="x" * 10_000), UsageError, "at most 512"),
        (lambda app, agent: app.start(agent, 1, thread_id=""), UsageError, "non-empty"),
        (lambda app, agent: app.start(agent, 1, thread_id="a\0b"), UsageError, "NUL"),
        (lambda app, agent: app.start(agent, 1, key="\ud800"), UsageError, "surrogate"),
        (lambda app, agent: app.start(agent, 1, if_busy="wait"), UsageError, "enqueue, reject, join"),
        (lambda app, agent: app.start(agent, 1, delay=-1), UsageError, "duration"),
        (lambda app, agent: app.start(agent, 1, priority=10**9), UsageError, "priority"),
        (lambda app, agent: app.start(agent, 1, tags="nightly"), UsageError, "list"),
        (lambda app, agent: app.runs(limit=0), UsageError, "limit"),
        (lambda app, agent: app.runs(state="done"), UsageError, "queued"),
        (lambda app, agent: app.runs(after="7"), UsageError, "run id"),
        (lambda app, agent: app.run_info("r99999"), perdure.NotFound, "runs list"),
        (lambda app, agent: app.run_info("seven"), UsageError, "r42"),
        (lambda app, agent: app.retry("r99999"), perdure.NotFound, "runs list"),
        (lambda app, agent: app.release("x"), UsageError, "r42"),
        (lambda app, agent: app.thread("unknown").state(), perdure.NotFound, "threads list"),
        (lambda app, agent: RunHandle(app, 1, "t").result(timeout=-1), UsageError, "duration"),
    ],
)
def test_bad_input_is_a_typed_error_with_its_remedy(call: Any, error: type[Exception], remedy: str) -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int) -> int:
        return n

    async def main() -> None:
        async with app:
            with pytest.raises(error, match=remedy):
                await call(app, agent)
            assert await app.runs() == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"lease_s": 0.1}, "at least"),
        ({"queues": "default"}, "list"),
        ({"queues": []}, "at least one"),
        ({"grace_s": -1}, "negative"),
        ({"name": "x" * 1000}, "at most"),
    ],
)
def test_bad_worker_settings_are_refused(settings: dict[str, Any], remedy: str) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    with pytest.raises(UsageError, match=remedy):
        app.worker(**settings)


def test_an_app_registers_each_name_once_and_only_async_functions() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    with pytest.raises(UsageError, match="already"):
        app.agent(name="agent")(agent.fn)
    with pytest.raises(UsageError, match="async def"):
        app.agent(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="keyword-only"):

        @app.agent
        async def positional(state: dict[str, int]) -> None: ...


FROM_OUTSIDE: list[Any] = [
    lambda app, agent: app.start(agent, 1, tags=5),
    lambda app, agent: app.start(agent, 1, tags=None),
    lambda app, agent: app.runs(tags=5),
    lambda app, agent: app.start(agent, 1, priority=10**5000),
    lambda app, agent: app.thread("t").mailbox(after="m1"),
    lambda app, agent: app.thread("t").checkpoints(after="r1"),
    lambda app, agent: app.thread("t").checkpoints(limit="x"),
    lambda app, agent: app.thread("t").state(at=1),
    lambda app, agent: app.thread("t").fork(super_step=2**31),
    lambda app, agent: app.thread("t").fork(super_step=True),
    lambda app, agent: app.thread("t").fork(1, 5),
    lambda app, agent: app.thread("t").fork(1, args=5),
    lambda app, agent: app.thread("t").fork(1, kwargs={1: 2}),
    lambda app, agent: app.start(agent, deep()),
    lambda app, agent: app.start(deep()),
    *(
        lambda app, agent, name=name: app.start(agent, 1, **{name: deep()})
        for name in ("thread_id", "key", "if_busy", "queue", "priority", "delay", "deadline", "tenant", "tags")
    ),
    lambda app, agent: app.start(agent, 1, tags=[deep()]),
    *(
        lambda app, agent, name=name: app.runs(**{name: deep()})
        for name in ("state", "agent", "thread_id", "tenant", "tags", "limit", "after")
    ),
    *(
        lambda app, agent, name=name: app.interrupts(**{name: deep()})
        for name in ("state", "agent", "thread_id", "run_id", "assignee", "tenant", "limit", "after")
    ),
    lambda app, agent: app.run_info(deep()),
    lambda app, agent: app.cancel(deep()),
    lambda app, agent: app.cancel("r1", reason=deep()),
    lambda app, agent: app.interrupt_info(deep()),
    lambda app, agent: app.resume(deep(), 1),
    lambda app, agent: app.resume("i1", 1, by=deep()),
    lambda app, agent: app.send(deep(), 1),
    lambda app, agent: app.send("t", deep()),
    lambda app, agent: app.send("t", 1, on_full=deep()),
    lambda app, agent: app.send("t", 1, timeout=deep()),
    lambda app, agent: app.dead_letters(deep()),
    lambda app, agent: app.dead_letters(after=deep()),
    lambda app, agent: app.replay_dead_letter(deep()),
    *(
        lambda app, agent, name=name: app.thread("t").fork(**{"super_step": 1, name: deep()})
        for name in ("super_step", "key", "run_id", "thread_id", "args", "kwargs", "state")
    ),
    lambda app, agent: RunHandle(app, 1, "t").result(timeout=deep()),
]


@pytest.mark.parametrize("call", FROM_OUTSIDE)
def test_what_no_verb_can_take_is_a_usage_error_of_a_readable_length(call: Any) -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: Any) -> Any:
        return n

    async def main() -> None:
        async with app:
            await app.start(agent, 1, thread_id="t")
            with pytest.raises(UsageError) as told:
                await call(app, agent)
            assert len(str(told.value)) < 1_500

    asyncio.run(main())


INSIDE: list[Any] = [
    lambda agent: perdure.sleep(deep()),
    lambda agent: perdure.sleep_until(deep()),
    lambda agent: perdure.sleep_until("2026-12-01T09:00", tz=deep()),
    lambda agent: perdure.interrupt(deep()),
    lambda agent: perdure.interrupt({"a": object()}),
    lambda agent: perdure.interrupt(1, timeout=1, on_timeout=perdure.Default(deep())),
    *(
        lambda agent, name=name: perdure.interrupt(1, **{name: deep()})
        for name in ("name", "schema", "assignee", "on_timeout", "timeout")
    ),
    lambda agent: perdure.receive(deep()),
    lambda agent: perdure.receive(timeout=deep()),
    lambda agent: perdure.send(deep(), 1),
    lambda agent: perdure.send("t", deep()),
    lambda agent: perdure.call(deep()),
    lambda agent: perdure.call(agent, deep()),
    lambda agent: perdure.call(agent, 1, tags=5),
    lambda agent: perdure.start(agent, 1, thread_id=deep()),
]


def test_what_no_verb_inside_an_agent_can_take_is_a_usage_error() -> None:
    app = fresh_app()

    @app.agent
    async def other(n: Any) -> Any:
        return n

    @app.agent
    async def agent(number: int) -> str:
        try:
            return f"nothing was wrong: {await INSIDE[number](other)!r}"
        except UsageError:
            return "told"

    async def main() -> list[str]:
        async with working(app):
            handles = [await app.start(agent, number) for number in range(len(INSIDE))]
            return [await handle.result(timeout=20) for handle in handles]

    assert asyncio.run(main()) == ["told"] * len(INSIDE)


@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_a_deadline_at_an_end_of_time_can_be_looked_at(hours: int) -> None:
    app = fresh_app()
    zone = timezone(timedelta(hours=hours))

    @app.agent
    async def agent(when: datetime | None) -> None: ...

    async def main() -> None:
        async with app:
            for extreme in (datetime.min, datetime.max):
                handle = await app.start(agent, None, deadline=extreme.replace(tzinfo=zone))
                deadline_at = (await handle.status()).deadline_at
                assert deadline_at is not None
                assert abs(deadline_at.replace(tzinfo=None) - extreme) <= timedelta(hours=14)

    asyncio.run(main())
