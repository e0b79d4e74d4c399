"""Errors of user code that cannot say what they are, or end the process when they are asked."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import pytest

import perdure
from perdure import RunFailed
from perdure.runtime.dispatching import UNRECORDABLE
from perdure.runtime.info import named
from tests.runtime.paying import QUICK, Provider, charging, ledger, run
from tests.runtime.sinking import Shelf, settled
from tests.runtime.world import fresh_app


class MuteError(ConnectionError):
    """Breaks when it is asked."""

    def __str__(self) -> str:
        raise KeyError("text")


class ExitingError(ConnectionError):
    """Ends the process when it is asked."""

    def __str__(self) -> str:
        raise SystemExit(3)

    @property
    def retry_after(self) -> float:
        raise SystemExit(4)

    @property
    def __notes__(self) -> list[str]:
        raise SystemExit(5)


UNSAYABLE: list[type[Exception]] = [MuteError, ExitingError]


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_what_became_of_an_effect_that_raised_one_nobody_knows(kind: type[Exception]) -> None:
    app, provider = fresh_app(), Provider(kind())
    agent = charging(app, provider, on_unknown="fail")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert row.state.value == "unknown" and row.note is not None and f"{kind.__name__}: <no text" in row.note

    run(app, main)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_a_provider_that_broke_with_one_cannot_tell(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.inquiry.VERIFY_ATTEMPTS", 1)
    app, provider = fresh_app(), Provider("lost after")

    async def verify(key: str, args: dict[str, Any]) -> NoReturn:
        raise kind

    agent = charging(app, provider, verify=verify, on_unknown="fail")

    async def main() -> None:
        with pytest.raises(RunFailed, match=f"cannot tell .*{kind.__name__}: <no text"):
            await (await app.start(agent)).result(timeout=20)

    run(app, main)
    assert len(provider.calls) == 1


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_an_undo_that_broke_with_one_is_told_and_the_others_are_done(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.undoing.backoff_s", lambda *args: 0.0)
    app = fresh_app()

    async def well(receipt: str) -> None: ...

    async def broken(receipt: str) -> NoReturn:
        raise kind

    async def charge(what: str) -> str:
        return what

    first, second = perdure.effect(charge, name="first", undo=well), perdure.effect(charge, name="second", undo=broken)

    @app.agent
    async def agent() -> None:
        await first("a")
        await second("b")
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        rows = {row.name: row for row in await ledger(app)}
        assert rows["first"].state.value == "undone"
        note = rows["second"].note
        assert note is not None and note.startswith(f"try 5 of its undo: {kind.__name__}: <no text")

    run(app, main)


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_an_effect_whose_type_refuses_its_result_with_one_is_not_done_again(kind: type[Exception]) -> None:
    app = fresh_app()
    calls: list[str] = []

    class Receipt(msgspec.Struct):
        what: str

        def __post_init__(self) -> None:
            if self.what in calls:
                raise kind

    async def charge(what: str) -> Any:
        receipt = Receipt(what)
        calls.append(what)
        return receipt

    charge.__annotations__["return"] = Receipt
    effect = perdure.effect(charge, retry=QUICK, on_unknown="retry")

    @app.agent
    async def agent() -> None:
        await effect("tea")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        assert [(row.state.value, row.note) for row in await ledger(app)] == [("unknown", UNRECORDABLE)]

    run(app, main)
    assert calls == ["tea"]


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_a_sink_that_raised_one_is_tried_again(kind: type[Exception]) -> None:
    app = fresh_app()
    sink = app.sink("shop", Shelf(kind()))

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        [row] = await settled(app)
        assert row.attempts == 2

    run(app, main)
    assert [item.attempt for item in sink.items] == [2]


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_an_error_without_words_has_a_name(kind: type[Exception]) -> None:
    assert f"{kind.__name__}: <no text" in named(kind())
