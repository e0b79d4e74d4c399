"""User code that ends with a `CancelledError` that nobody outside of it has asked for: a failure like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

import perdure
from perdure import OutcomeUnknown, RunFailed, StepFailed
from perdure.core.limits import UNDO_ATTEMPTS
from perdure.runtime.callables import CUT_SHORT
from perdure.runtime.execution import Execution
from tests.runtime.paying import QUICK, Provider, charging, ledger, run, states
from tests.runtime.world import asked, fresh_app


async def awaits_what_is_cancelled(*_: Any) -> NoReturn:
    """As a library does that closes its connections under whoever waits for an answer."""
    answer = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(answer.cancel)
    await answer
    raise AssertionError("it was cancelled")


async def cancels_itself(*_: Any) -> NoReturn:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()
    raise AssertionError("it was cancelled")


async def raises_it(*_: Any) -> NoReturn:
    raise asyncio.CancelledError


def raises_it_in_a_thread(*_: Any) -> NoReturn:
    raise asyncio.CancelledError


Rough = Callable[..., Any]

WITHIN: list[Rough] = [awaits_what_is_cancelled, raises_it, raises_it_in_a_thread]
OF_ITS_OWN: list[Rough] = [*WITHIN, cancels_itself]
"""The same where the code has a task of its own."""


def named(fn: Rough) -> str:
    return fn.__name__


@pytest.mark.parametrize("body", WITHIN, ids=named)
def test_a_step_has_failed_and_is_tried_again_as_after_a_lost_connection(body: Rough) -> None:
    app = fresh_app()
    tries = []

    def counted(*_: Any) -> Any:
        tries.append(1)
        return body()

    step = perdure.step(counted if body is raises_it_in_a_thread else _async(counted), name="ask", retry=QUICK)

    @app.agent
    async def agent() -> str:
        try:
            await step()
        except StepFailed as error:
            return f"{error.type}: {CUT_SHORT in str(error)}"
        return "it has not failed"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "ConnectionAbortedError: True"

    run(app, main)
    assert len(tries) == QUICK.attempts


def _async(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def call(*args: Any) -> Any:
        return await fn(*args)

    return call


def test_a_step_that_the_code_around_it_cancels_is_cancelled() -> None:
    app = fresh_app()

    @perdure.step
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.agent
    async def agent() -> str:
        try:
            async with asyncio.timeout(0.01):
                await slow()
        except TimeoutError:
            return "late"
        return "it has not been cancelled"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "late"

    run(app, main)


@pytest.mark.parametrize("body", OF_ITS_OWN, ids=named)
def test_of_an_effect_nobody_knows_whether_it_happened(body: Rough) -> None:
    app = fresh_app()
    rough = perdure.effect(body, name="charge", on_unknown="fail")

    @app.agent
    async def agent() -> str:
        try:
            await rough()
        except OutcomeUnknown as unknown:
            return str(unknown)
        return "it is known"

    async def main() -> None:
        assert CUT_SHORT in await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["unknown"]

    run(app, main)


def test_an_effects_policy_is_followed() -> None:
    app = fresh_app()
    rough = perdure.effect(awaits_what_is_cancelled, name="charge", on_unknown="ask")

    @app.agent
    async def agent() -> None:
        await rough()

    async def main() -> None:
        handle = await app.start(agent)
        [number] = (await asked(app, handle)).values()
        [question] = await app.interrupts(run_id=handle.run_id)
        assert question.id == number and CUT_SHORT in str(question.payload)

    run(app, main)


@pytest.mark.parametrize("verify", WITHIN, ids=named)
def test_a_provider_that_was_asked_so_cannot_tell(verify: Rough, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.inquiry.VERIFY_ATTEMPTS", 1)
    app, provider = fresh_app(), Provider("lost after")
    agent = charging(app, provider, verify=verify, on_unknown="fail")

    async def main() -> None:
        with pytest.raises(RunFailed, match=f"cannot tell .*{CUT_SHORT}"):
            await (await app.start(agent)).result(timeout=20)

    run(app, main)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("undo", OF_ITS_OWN, ids=named)
def test_an_undo_has_failed_and_the_others_are_done(undo: Rough, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.backoff_s", lambda *args: 0.0)
    app = fresh_app()
    undone: list[str] = []

    async def well(receipt: str) -> None:
        undone.append(receipt)

    async def charge(what: str) -> str:
        return what

    first, second = perdure.effect(charge, name="first", undo=well), perdure.effect(charge, name="second", undo=undo)

    @app.agent
    async def agent() -> None:
        await first("a")
        await second("b")
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        assert [(row.name, row.state.value) for row in await ledger(app)] == [
            ("first", "undone"),
            ("second", "undo_failed"),
        ]
        [_, failed] = await ledger(app)
        assert failed.undo_attempt == UNDO_ATTEMPTS
        assert ("CancelledError" if undo is cancels_itself else CUT_SHORT) in str(failed.note)

    run(app, main)
    assert undone == ["a"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
def test_a_run_whose_execution_breaks_off_is_given_back_whatever_breaks_it(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app()
    original, broken = Execution.run, iter([error])

    async def breaks_once(self: Execution) -> Any:
        for each in broken:
            raise each
        return await original(self)

    monkeypatch.setattr(Execution, "run", breaks_once)

    @app.agent
    async def agent() -> str:
        return "done"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "done"

    run(app, main)
