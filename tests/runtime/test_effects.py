"""Effects: on disk before they happen, seen to their end, and never silently done again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure import OutcomeUnknown, Retry, RunFailed
from perdure.core.effects import EffectState
from tests.runtime.paying import QUICK, Provider, RefusedError, charging, ledger, run, states
from tests.runtime.world import asked, fresh_app, parked, working

# -- the plain way ----------------------------------------------------------------------------------------------------


def test_an_effect_is_in_the_ledger_before_its_body_runs_and_done_after_it() -> None:
    app = fresh_app()
    seen: list[tuple[str, str, bool]] = []

    @perdure.effect
    async def charge(customer: str, cents: int = 5) -> str:
        [row] = await ledger(app)
        seen.append((row.state, row.name, row.idempotency_key == perdure.effect_key()))
        return f"{customer} paid {cents}"

    @app.agent
    async def agent() -> str:
        return await charge("ann", cents=7)

    async def main() -> None:
        handle = await app.start(agent)
        assert await handle.result(timeout=20) == "ann paid 7"
        [row] = await ledger(app)
        assert (row.state, row.attempt, row.policy, row.undoable) == (EffectState.DONE, 1, "ask", False)

    run(app, main)
    assert seen == [("intended", "charge", True)]


def test_an_effect_that_is_on_record_is_not_dispatched_when_the_run_goes_on_after_a_failure() -> None:
    """C32: what failed after the charge is tried again, the charge is not."""
    app, provider = fresh_app(), Provider()
    charge = perdure.effect(provider.charge, name="charge")
    failures = iter([ValueError("the model is confused"), ValueError("again"), None])

    @perdure.step
    async def model() -> str:
        if (error := next(failures)) is not None:
            raise error
        return "fine"

    @app.agent
    async def agent() -> list[str]:
        return [await charge("tea"), await model()]

    async def main() -> None:
        handle = await app.start(agent)
        for _ in range(2):
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            await app.retry(handle.run_id)
        assert await handle.result(timeout=20) == ["receipt 1 for tea", "fine"]

    run(app, main)
    assert len(provider.calls) == 1


def test_outside_of_an_agent_it_is_a_plain_call_with_a_key_of_its_own() -> None:
    provider = Provider()
    charge = perdure.effect(provider.charge)

    async def main() -> None:
        assert await charge("tea") == "receipt 1 for tea"
        assert await charge("tea") == "receipt 2 for tea"

    asyncio.run(main())


def test_an_effect_in_the_body_of_a_step_is_refused() -> None:
    app, provider = fresh_app(), Provider()
    charge = perdure.effect(provider.charge)

    @perdure.step
    async def pay() -> str:
        return await charge("tea")

    @app.agent
    async def agent() -> str:
        return await pay()

    async def main() -> None:
        with pytest.raises(RunFailed, match="inside the body of step 'pay'"):
            await (await app.start(agent)).result(timeout=20)

    run(app, main)
    assert provider.calls == []


# -- what an exception says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no such customer"), RefusedError(402)], ids=["own", "402"])
def test_what_the_provider_refuses_did_not_happen_and_is_not_tried_again(error: Exception) -> None:
    app, provider = fresh_app(), Provider(error)
    agent = charging(app, provider)

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["failed"]

    run(app, main)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("error", [ConnectionRefusedError(), RefusedError(429)], ids=["refused", "429"])
def test_what_was_never_sent_is_tried_again_whatever_the_policy(error: Exception) -> None:
    app, provider = fresh_app(), Provider(error, error)
    agent = charging(app, provider, on_unknown="fail")

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "receipt 1 for tea"

    run(app, main)
    assert len(provider.calls) == 3
    assert len(set(provider.calls)) == 1


# -- unknown outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["lost before", "lost after"])
def test_with_retry_an_unknown_outcome_is_dispatched_again_under_the_same_key(act: str) -> None:
    app, provider = fresh_app(), Provider(act, act)
    agent = charging(app, provider, on_unknown="retry")

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "receipt 1 for tea"
        [row] = await ledger(app)
        assert (row.state, row.attempt) == (EffectState.DONE, 3)

    run(app, main)
    assert len(set(provider.calls)) == 1
    assert len(provider.done) == 1


def test_with_retry_its_attempts_are_bounded_and_then_it_is_unknown() -> None:
    app, provider = fresh_app(), Provider(*["lost after"] * 3)
    agent = charging(app, provider, on_unknown="retry")

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed, match="OutcomeUnknown"):
            await handle.result(timeout=20)
        assert await states(app) == ["unknown"]
        await app.retry(handle.run_id)  # a person sends it on: the policy begins anew, under the same key
        assert await handle.result(timeout=20) == "receipt 1 for tea"
        assert await states(app) == ["done"]

    run(app, main)
    assert len(set(provider.calls)) == 1


def test_what_a_person_has_found_out_is_taken_as_the_effect_s_result_when_the_run_is_sent_on() -> None:
    app, provider = fresh_app(), Provider("lost after")
    agent = charging(app, provider, on_unknown="fail")

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed, match="nobody knows"):
            await handle.result(timeout=20)
        [row] = await ledger(app)
        await app.resolve_effect(f"e{row.id}", happened=True, result="receipt 1 for tea", by="ann", note="saw it")
        await app.retry(handle.run_id)
        assert await handle.result(timeout=20) == "receipt 1 for tea"
        [row] = await ledger(app)
        assert (row.state, row.attempt, row.by, row.note) == (EffectState.DONE, 1, "ann", "saw it")

    run(app, main)
    assert len(provider.calls) == 1


def test_with_fail_the_agent_gets_outcome_unknown_and_the_ledger_keeps_it() -> None:
    app, provider = fresh_app(), Provider("lost after")
    charge = perdure.effect(provider.charge, name="charge", on_unknown="fail")

    @app.agent
    async def agent() -> str:
        try:
            return str(await charge("tea"))
        except OutcomeUnknown as unknown:
            return f"unknown {unknown.effect_id}"

    async def main() -> None:
        result = await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert (row.state, result) == (EffectState.UNKNOWN, f"unknown e{row.id}")

    run(app, main)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("act", ["lost before", "lost after"])
def test_verify_asks_the_provider_and_the_charge_is_made_once(act: str) -> None:
    app, provider = fresh_app(), Provider(act)
    agent = charging(app, provider, verify=provider.ask)

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "receipt 1 for tea"
        assert await states(app) == ["done"]

    run(app, main)
    assert len(provider.calls) == {"lost before": 2, "lost after": 1}[act]


def test_where_the_provider_cannot_tell_the_other_policy_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.inquiry.VERIFY", Retry(attempts=5, delay_s=0.001))
    app, provider = fresh_app(), Provider("lost after", honest=False)
    agent = charging(app, provider, verify=provider.ask, on_unknown="fail")

    async def main() -> None:
        with pytest.raises(RunFailed, match="it is asleep"):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["unknown"]

    run(app, main)


@pytest.mark.parametrize(
    ("answer", "result", "calls"),
    [
        ({"happened": True, "result": "by hand"}, "by hand", 1),
        ({"happened": False}, "receipt 1 for tea", 2),
        ({"happened": None}, None, 1),
    ],
    ids=["it happened", "it did not", "nobody knows"],
)
def test_ask_puts_a_question_into_the_inbox_and_waits_parked(answer: Any, result: str | None, calls: int) -> None:
    app, provider = fresh_app(), Provider("lost before")
    agent = charging(app, provider)

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert await states(app) == ["unknown"]
            [question] = await app.interrupts()
            assert question.payload["why"] == "ConnectionResetError: lost before"
            await app.resume(question.id, answer, by="ann")
            if result is None:
                with pytest.raises(RunFailed, match="nobody can find out"):
                    await handle.result(timeout=20)
                assert await states(app) == ["unknown"]
            else:
                assert await handle.result(timeout=20) == result
                assert await states(app) == ["done"]

    asyncio.run(main())
    assert len(provider.calls) == calls


def test_each_unknown_try_is_its_own_question() -> None:
    app, provider = fresh_app(), Provider("lost before", "lost before")
    agent = charging(app, provider)

    async def main() -> None:
        handle = await app.start(agent)
        for _ in range(2):
            for question in (await asked(app, handle)).values():
                await app.resume(question, {"happened": False}, by="ann")
        assert await handle.result(timeout=20) == "receipt 1 for tea"

    run(app, main)
    assert len(provider.calls) == 3


# -- cancelled in flight ----------------------------------------------------------------------------------------------


def test_c36_a_cancellation_in_the_first_of_five_effects_waits_for_it_undoes_it_and_begins_no_other() -> None:
    app = fresh_app()
    in_flight, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    def give_back(number: int) -> None:
        done.append(f"{number} given back")

    @perdure.effect(undo=give_back)
    async def buy(number: int) -> int:
        in_flight.set()
        await go_on.wait()
        done.append(f"{number} bought")
        return number

    @app.agent
    async def agent() -> None:
        for number in range(5):
            await buy(number)

    async def main() -> None:
        handle = await app.start(agent)
        await in_flight.wait()
        await handle.cancel("stop")
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)
        assert await states(app) == ["undone"]

    run(app, main)
    assert done == ["0 bought", "0 given back"]


def test_a_time_out_around_an_effect_waits_for_its_outcome() -> None:
    app = fresh_app()

    @perdure.effect
    async def slow() -> str:
        await asyncio.sleep(0.2)  # longer than the time-out around it
        return "done"

    @app.agent
    async def agent() -> str:
        try:
            async with asyncio.timeout(0.05):
                got = await slow()
                await asyncio.get_running_loop().create_future()
                return f"late {got}"
        except TimeoutError:
            return f"timed out, and then {await slow()}"

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == "timed out, and then done"
        assert await states(app) == ["done", "done"]

    run(app, main)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: perdure.effect(5), "takes a function"),  # type: ignore[call-overload]
        (lambda: perdure.effect(on_unknown="hope")(print), '"retry", "ask" or "fail"'),  # type: ignore[call-overload]
        (lambda: perdure.effect(undo="refund")(print), "undo is 'refund'"),  # type: ignore[call-overload]
        (lambda: perdure.effect(perdure.step(print)), "is a step already"),
    ],
)
def test_a_bad_declaration_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(perdure.UsageError, match=words):
        make()


def test_an_argument_that_the_ledger_cannot_keep_is_refused_before_anything_happens() -> None:
    app = fresh_app()

    @perdure.effect
    async def charge(customer: Any) -> None:
        raise AssertionError("it is not dispatched")

    @app.agent
    async def agent() -> None:
        await charge(object())

    async def main() -> None:
        with pytest.raises(RunFailed, match="NotSerializable"):
            await (await app.start(agent)).result(timeout=20)

    run(app, main)


def test_an_effect_called_with_other_arguments_than_it_was_dispatched_with_holds_the_run() -> None:
    app, provider = fresh_app(), Provider("lost before")
    charge = perdure.effect(provider.charge, name="charge", on_unknown="ask")
    words = iter(["tea", "gin"])

    @app.agent
    async def agent() -> str:
        return str(await charge(next(words)))

    async def main() -> None:
        handle = await app.start(agent)
        for question in (await asked(app, handle)).values():
            await app.resume(question, {"happened": False})
        with pytest.raises(perdure.RunHeld, match="'gin'"):
            await handle.result(timeout=20)

    run(app, main)
    assert len(provider.calls) == 1


def test_what_a_later_try_is_refused_for_says_nothing_of_the_one_before() -> None:
    app, provider = fresh_app(), Provider("lost after", RefusedError(401), RefusedError(401))
    agent = charging(app, provider, on_unknown="retry")

    async def main() -> None:
        with pytest.raises(RunFailed, match="OutcomeUnknown"):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["unknown"]

    run(app, main)
    assert len(provider.done) == 1


def test_what_its_type_makes_of_a_result_is_no_word_of_the_body() -> None:
    app = fresh_app()
    bodies: list[int] = []

    @dataclass
    class Receipt:
        number: int

        def __post_init__(self) -> None:
            if len(bodies) == 1 and self.number == 1 and made:
                raise ConnectionRefusedError("from a constructor")

    made: list[Receipt] = []

    @perdure.effect(on_unknown="fail", returns=Receipt)
    async def charge() -> Receipt:
        bodies.append(1)
        made.append(Receipt(1))
        return made[0]

    @app.agent
    async def agent() -> None:
        await charge()

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        assert await states(app) == ["unknown"]

    run(app, main)
    assert len(bodies) == 1


def test_a_try_gets_the_arguments_that_are_in_the_ledger_whatever_became_of_those_that_were_passed() -> None:
    app = fresh_app()
    seen: list[list[int]] = []

    @perdure.effect(on_unknown="retry", retry=QUICK)
    async def order(cents: list[int]) -> int:
        seen.append(list(cents))
        cents.clear()
        if len(seen) == 1:
            raise ConnectionResetError("lost")
        return sum(seen[-1])

    @app.agent
    async def agent() -> int:
        return await order([100, 35])

    async def main() -> None:
        assert await (await app.start(agent)).result(timeout=20) == 135

    run(app, main)
    assert seen == [[100, 35], [100, 35]]


def test_an_error_that_no_store_can_keep_is_kept_as_far_as_it_can_be() -> None:
    app, provider = fresh_app(), Provider(ConnectionResetError("\ud800\0" * 5_000))
    agent = charging(app, provider, on_unknown="fail")

    async def main() -> None:
        with pytest.raises(RunFailed, match="OutcomeUnknown"):
            await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert row.state is EffectState.UNKNOWN and row.note is not None and len(row.note) < 3_000

    run(app, main)
