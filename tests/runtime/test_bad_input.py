"""Nonsense at the public entries: a typed error with its remedy, and nothing written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import UnknownAgent, UsageError
from perdure.client.handles import Handle
from tests.runtime.world import fresh_app


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
        (lambda app, agent: Handle(app, 1, "t").result(timeout=-1), UsageError, "duration"),
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
