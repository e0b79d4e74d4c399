"""What an effect has beside its body has to take what it is called with; a mistake shows where it is declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import App, DidNotHappen, RunFailed, UsageError, telemetry
from perdure.testing import crash_before, fail_step, rehearse


def charge(customer: str, cents: int = 100, *, currency: str = "EUR") -> str:
    return f"receipt for {customer}"


def any_args(*args: str, **named: str) -> str:
    return "done"


class Bank:
    def refund(self, receipt: str, customer: str, cents: int, reason: str) -> None: ...

    @staticmethod
    def look_up(key: str) -> None: ...


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


FIT: list[Callable[..., Any]] = [
    lambda: None,
    lambda receipt: None,
    lambda receipt, customer, cents: None,
    lambda receipt, who, how_much, currency: None,
    lambda receipt, *, currency: None,
    lambda receipt, customer, cents, currency, reason="none": None,
    lambda *args, **named: None,
    wrapped(lambda receipt: None),
    functools.partial(lambda reason, receipt: None, "none"),
    Bank().refund,
    Bank.refund,
    perdure.step(lambda receipt: None, name="refund"),
    str,
]


@pytest.mark.parametrize("undo", FIT)
def test_an_undo_that_takes_some_of_what_there_is_can_be_declared(undo: Any) -> None:
    assert perdure.effect(charge, undo=undo).plan.undo is undo


@pytest.mark.parametrize(
    ("undo", "wants"),
    [
        (lambda receipt, customer, cents, reason: None, "reason"),
        (lambda receipt, *, reason: None, "reason"),
        (lambda receipt, *, customer: None, "customer"),
        (wrapped(lambda receipt, customer, cents, reason: None), "reason"),
        (perdure.step(lambda receipt, *, reason: None, name="refund"), "reason"),
    ],
)
def test_an_undo_that_wants_what_nobody_gives_it_is_refused(undo: Any, wants: str) -> None:
    told = (
        rf"missing a required.* argument: '{wants}'.*result, then .*charge\(customer, cents=100, \*, currency='EUR'\)"
    )
    with pytest.raises(UsageError, match=told):
        perdure.effect(undo=undo)(charge)


def test_an_undo_of_an_effect_that_takes_any_arguments_may_take_any() -> None:
    perdure.effect(any_args, undo=lambda receipt, one, two, *, three: None)


@pytest.mark.parametrize(
    "verify",
    [
        lambda key, args: None,
        lambda *args: None,
        lambda key, args, more=1: None,
        Bank.look_up,
        functools.partial(charge),
        dict,
    ],
)
def test_a_verify_that_takes_a_key_and_arguments_can_be_declared(verify: Any) -> None:
    assert perdure.effect(charge, verify=verify).plan.verify is verify


@pytest.mark.parametrize(
    "verify", [lambda: None, lambda key: None, lambda key, args, more: None, lambda key, args, *, more: None]
)
def test_a_verify_that_cannot_be_called_is_refused(verify: Any) -> None:
    with pytest.raises(UsageError, match=r"called as verify\(key, args\)"):
        perdure.effect(charge, verify=verify)


@pytest.mark.parametrize("beside", ["undo", "verify"])
def test_an_effect_is_neither_undo_nor_verify_of_another(beside: str) -> None:
    other = perdure.effect(lambda key, args: None, name="other")
    given: dict[str, Any] = {beside: other}
    with pytest.raises(UsageError, match="give the plain function"):
        perdure.effect(charge, **given)


def test_an_undo_gets_the_defaults_of_what_the_call_left_out() -> None:
    app = App("defaults", store="memory://defaults")
    got: list[tuple[Any, ...]] = []

    def refund(receipt: str, customer: str, cents: int, *, currency: str) -> None:
        got.append((receipt, customer, cents, currency))

    paid = perdure.effect(charge, undo=refund)

    @app.agent
    async def agent() -> None:
        await paid("ann")
        raise ValueError("it is too late")

    with rehearse(app) as stage, pytest.raises(RunFailed):
        stage.run(agent)
    assert got == [("receipt for ann", "ann", 100, "EUR")]


def test_a_verify_that_breaks_is_in_the_log() -> None:
    app = App("verify", store="memory://verify")
    told: list[dict[str, Any]] = []

    def look_up(key: str, args: dict[str, Any]) -> DidNotHappen:
        if len(told) < 2:
            raise LookupError("no such page")
        return DidNotHappen()

    paid = perdure.effect(charge, verify=look_up)

    @app.agent
    async def agent() -> str:
        return await paid("ann")

    deaf = telemetry.subscribe(lambda event, fields: told.append(fields) if event == "effect.verify_failed" else None)
    try:
        with rehearse(app, crash_before("charge")) as stage:
            assert stage.run(agent) == "receipt for ann"
    finally:
        deaf()
    assert [(each["key"], each["error"]) for each in told] == [("charge", "LookupError: no such page")] * 2


@pytest.mark.parametrize("crashes", [0, 2])
def test_what_a_verify_could_not_tell_is_in_the_ledger(crashes: int) -> None:
    app = App("note", store="memory://note")

    def look_up(key: str, args: dict[str, Any]) -> DidNotHappen:
        raise LookupError("no such page")

    paid = perdure.effect(charge, verify=look_up)

    @app.agent
    async def agent() -> str:
        return await paid("ann")

    with rehearse(app, fail_step("charge", TimeoutError("too late"))) as stage:
        handle = stage.start(agent)
        stage.advance("1h")
        for _ in range(crashes):
            stage.crash()
            stage.advance("1h")
        (row,) = stage.effects("unknown")
        assert row.note == (
            "TimeoutError: too late; its provider was asked and cannot tell (LookupError: no such page)"
        )
        stage.answer("effect:charge", {"happened": True, "result": "seen"})
        assert stage.play(handle.result) == "seen"
        (row,) = stage.effects()
        shown = stage.play(lambda: app.effect_info(row.id))
        assert [each.note for each in shown.events if "cannot tell" in (each.note or "")] != []
