"""Nonsense at the public entries: a typed error with its remedy, and nothing written."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

import perdure
from perdure import PerdureError, UnknownAgent, UsageError
from perdure.client.handles import RunHandle
from perdure.runtime.settings import WorkerSettings, worker_settings
from tests.runtime.world import fresh_app, result_of, working


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
        (lambda app, agent: app.start(agent(1)), UnknownAgent, r"agent\(\.\.\.\) was called.*\(agent, \.\.\.\)"),
        (lambda app, agent: app.start(perdure.step(agent.fn, name="s")(1)), UnknownAgent, "was called"),
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
        ({"concurency": 5}, r"no setting 'concurency' \(did you mean 'concurrency'\?\); there are: name, deployment"),
        ({"threads": None}, r"no setting 'threads'; there are"),
    ],
)
def test_bad_worker_settings_are_refused(settings: dict[str, Any], remedy: str) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    for verb in (app.worker, app.serve):
        with pytest.raises(UsageError, match=remedy):
            verb(**settings)


NONSENSE: list[Any] = [
    0, -1, float("nan"), float("inf"), "x", True, 10**400, 1e-320, [], {}, "\0", b"x", object(), ["a", 3], 2.5, 3,
    ["q"], "a",
]  # fmt: skip
"""What may be given for a setting by mistake, and some that may be right."""


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(WorkerSettings)])
def test_a_setting_of_a_worker_is_taken_or_refused_with_its_name(name: str) -> None:
    for value in NONSENSE:
        try:
            worker_settings(**{name: value})
        except UsageError as refused:
            assert name.rstrip("s") in str(refused), (value, str(refused))


@pytest.mark.parametrize(
    "name", ["thread_id", "key", "if_busy", "queue", "priority", "delay", "deadline", "tenant", "tags"]
)
def test_a_setting_of_a_start_is_taken_or_refused(name: str) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            for value in NONSENSE:
                with contextlib.suppress(PerdureError):
                    await app.start(agent, **{name: value})

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["thread_id", "key", "if_busy", "queue", "priority", "delay", "deadline", "tags", "detached"]
)
def test_a_setting_of_a_child_is_taken_or_refused(name: str) -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None: ...

    @app.agent
    async def agent() -> list[str]:
        strange = []
        for value in NONSENSE:
            try:
                await perdure.start(child, **{name: value})
            except PerdureError:
                continue
            except Exception as error:
                strange.append(f"{value!r}: {error!r}")
        return strange

    assert result_of(app, agent) == []


@pytest.mark.parametrize("name", ["name", "retry", "timeout", "queue", "durability"])
def test_a_setting_of_an_agent_is_taken_or_refused(name: str) -> None:
    app = fresh_app()

    async def agent() -> None: ...

    for value in NONSENSE:
        with contextlib.suppress(PerdureError):
            app.agent(**{name: value})(agent)


def test_a_child_is_detached_or_not() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        told = []
        for value in ("yes", None, 2, 10**30):
            try:
                await perdure.start(agent, detached=value)  # type: ignore[arg-type]
            except UsageError as error:
                told.append(str(error))
        return told

    assert result_of(app, agent) == [
        f"detached is {value}; give True or False" for value in ("'yes'", "None", 2, 10**30)
    ]


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


@dataclasses.dataclass(frozen=True)
class Fixed:
    count: int = 0


@pytest.mark.parametrize("kind", [int, str, tuple[int, ...], frozenset[str], Fixed, "Fixed", int | None, type(None)])
def test_a_state_that_cannot_be_changed_is_refused(kind: Any) -> None:
    async def agent(*, state: Any) -> None: ...

    agent.__annotations__["state"] = kind
    with pytest.raises(UsageError, match=r"agent agent: its state is .*cannot be changed in place.*a dict or a list"):
        fresh_app().agent(agent)


def test_a_state_that_is_declared_further_down_is_looked_at_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()

    @app.agent
    async def agent(*, state: _Later) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    monkeypatch.setitem(globals(), "_Later", int)
    with pytest.raises(UsageError, match="its state is int, which cannot be changed"):
        agent.state.first()  # type: ignore[union-attr]


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


LONG = "x" * 5_000


async def _plain(tx: Any) -> None: ...


@pytest.mark.parametrize(
    "call",
    [
        lambda app: perdure.step(_plain, retry=LONG),  # type: ignore[call-overload]
        lambda app: perdure.step(_plain, estimate=LONG),  # type: ignore[call-overload]
        lambda app: perdure.step(_plain, durability=LONG),  # type: ignore[call-overload]
        lambda app: perdure.step(LONG),  # type: ignore[call-overload]
        lambda app: perdure.step(_plain, cpu=LONG),  # type: ignore[call-overload]
        lambda app: perdure.transaction(LONG),  # type: ignore[call-overload]
        lambda app: perdure.effect(on_unknown=LONG)(_plain),  # type: ignore[call-overload]
        lambda app: perdure.effect(verify=LONG)(_plain),  # type: ignore[call-overload]
        lambda app: perdure.effect(undo=LONG)(_plain),  # type: ignore[call-overload]
        lambda app: perdure.Retry(retry_on=LONG),
        lambda app: perdure.Retry(final=LONG),
        lambda app: perdure.Retry(attempts=LONG),
        lambda app: app.source("s", LONG, start="agent"),
        lambda app: app.effect_info(LONG),
        lambda app: app.resolve_effect("e1", happened=LONG),
        lambda app: app.effects(state=LONG),
        lambda app: app.effects(undoable=LONG),
        lambda app: app.usage(by="run", since=LONG),
        lambda app: app.set_budget("tenant:t", None, if_rev=LONG),
    ],
)
def test_a_message_about_a_long_value_is_short(call: Any) -> None:
    _refuse(call, most=700)


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.source([], Nothing(), start="agent"),
        lambda app: app.source({}, Nothing(), start="agent"),
        lambda app: app.source(Decimal("sNaN"), Nothing(), start="agent"),
        lambda app: app.resolve_effect("e1", happened=Decimal("sNaN")),
        lambda app: app.resolve_effect("e1", undone=Decimal("sNaN")),
        lambda app: app.set_budget("tenant:t", perdure.Budget(usd=1), if_rev=Decimal("sNaN")),
        lambda app: app.set_budget("tenant:t", perdure.Budget(usd=1), if_rev=True),
        lambda app: app.set_budget("tenant:t", perdure.Budget(usd=1), if_rev=2**40),
    ],
)
def test_what_is_of_no_use_as_a_name_an_answer_or_a_number_is_told_so(call: Any) -> None:
    _refuse(call)


class Nothing(perdure.Source):
    """Nothing comes."""

    async def receive(self) -> Any:
        return
        yield


def _refuse(call: Any, *, most: int = 2_000) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            await app.set_budget("tenant:t", perdure.Budget(usd=2))
            with pytest.raises(UsageError) as refused:
                made = call(app)
                await made
            assert len(str(refused.value)) <= most
            assert (await app.budget_info("tenant:t")).rev == 1

    asyncio.run(main())
