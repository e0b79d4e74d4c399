"""Tries of deliveries: which count, which is the last, and what is said of one that failed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import perdure
from perdure import App, Retry, StoreUnavailable, Undeliverable, UsageError
from perdure.core.deliveries import Delivery, DeliveryState
from perdure.runtime import relay
from perdure.runtime.sinks import closed
from perdure.store.memory.store import MemoryStore
from tests.runtime.paying import run
from tests.runtime.sinking import Shelf, settled
from tests.runtime.world import fresh_app

ONCE = Retry(attempts=1)


def outcome(shelf: Shelf, state: DeliveryState = DeliveryState.DELIVERED) -> Delivery:
    """What becomes of one delivery to this sink."""
    app: App = fresh_app()
    app.sink("shop", shelf)
    found: list[Delivery] = []

    @app.agent
    async def agent() -> None:
        await perdure.deliver("shop", "tea")

    async def main() -> None:
        await (await app.start(agent)).result(timeout=20)
        found.extend(await settled(app, state=state))

    run(app, main)
    return found[0]


def test_what_was_claimed_more_often_than_it_may_be_tried_is_tried_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claims whose answers were lost have reached no sink."""
    claim, lost = MemoryStore.claim_deliveries, [True] * 3

    async def losing(self: MemoryStore, request: Any) -> Any:
        claimed = await claim(self, request)
        if claimed and lost:
            lost.pop()
            raise StoreUnavailable("the answer was lost")
        return claimed

    monkeypatch.setattr(MemoryStore, "claim_deliveries", losing)
    shelf = Shelf(retry=ONCE)
    row = outcome(shelf)
    assert (row.attempts, row.error, len(shelf.items)) == (4, None, 1)


def test_a_store_that_is_away_when_the_content_is_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    load, away = relay.load_payload, [True] * 3

    async def loading(*args: Any) -> Any:
        if away:
            away.pop()
            raise StoreUnavailable("away")
        return await load(*args)

    monkeypatch.setattr(relay, "load_payload", loading)
    monkeypatch.setattr(relay, "UNREAD_S", 0.01)
    shelf = Shelf(retry=ONCE)
    row = outcome(shelf)
    assert (row.attempts, row.error, [item.attempt for item in shelf.tries]) == (1, None, [1])


def test_a_try_that_ends_well_while_it_is_to_let_go_is_a_delivery() -> None:
    class Late(Shelf):
        async def deliver(self, item: perdure.Outgoing) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.items.append(item)

    shelf = Late(retry=ONCE, timeout_s=0.02)
    row = outcome(shelf)
    assert (row.attempts, row.error, len(shelf.items)) == (1, None, 1)


def test_a_try_that_breaks_while_it_is_to_let_go_has_timed_out() -> None:
    class Breaking(Shelf):
        async def deliver(self, item: perdure.Outgoing) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ConnectionError("closed in the middle")

    row = outcome(Breaking(retry=ONCE, timeout_s=0.02), DeliveryState.DEAD)
    assert row.error == "its sink did not take it within 0.02 s"


class SilentError(Exception):
    """Has nothing to say."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "TimeoutError"),
        (TimeoutError("the shop took 5 s"), "the shop took 5 s"),
        (SilentError(), "SilentError"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_the_error_of_a_try_is_never_empty(error: Exception, said: str) -> None:
    assert outcome(Shelf(error, retry=ONCE), DeliveryState.DEAD).error == said


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ({"final": ValueError}, ValueError("odd")),
        ({"final": (KeyError, OSError)}, ConnectionError("away")),
        ({"retry_on": ConnectionError}, ValueError("odd")),
        ({"retry_on": lambda error: "odd" not in str(error)}, ValueError("odd")),
        ({"retry_on": lambda error: True}, Undeliverable("odd")),
    ],
)
def test_what_a_sinks_policy_calls_final_is_not_tried_again(policy: dict[str, Any], error: Exception) -> None:
    shelf = Shelf(error, retry=Retry(attempts=4, delay_s=0.01, **policy))
    row = outcome(shelf, DeliveryState.DEAD)
    assert (row.attempts, len(shelf.tries)) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ({"final": ValueError}, KeyError("odd")),
        ({"retry_on": ValueError}, ValueError("odd")),
        ({"retry_on": ValueError}, ConnectionError("away")),
        ({"retry_on": lambda error: isinstance(error, asyncio.CancelledError)}, asyncio.CancelledError()),
    ],
)
def test_what_a_sinks_policy_lets_be_tried_again_is(policy: dict[str, Any], error: BaseException) -> None:
    shelf = Shelf(error, retry=Retry(attempts=4, delay_s=0.01, **policy))
    assert outcome(shelf).attempts == 2


def test_a_policy_that_breaks_is_named_by_what_it_gave_up() -> None:
    def broken(error: BaseException) -> bool:
        raise KeyError("status")

    shelf = Shelf(ValueError("odd"), retry=Retry(attempts=4, retry_on=broken))
    error = outcome(shelf, DeliveryState.DEAD).error
    assert error == "ValueError: odd retry_on broke on this error, so it is final: KeyError"


def test_a_sink_whose_close_is_a_plain_def_is_refused() -> None:
    class Plain(Shelf):
        def close(self) -> None:  # type: ignore[override]
            raise AssertionError("it is refused")

    with pytest.raises(UsageError, match="close of sink 'shop' is a plain def"):
        fresh_app().sink("shop", Plain())


@pytest.mark.parametrize("error", [RuntimeError("at once"), SystemExit(3), None])
def test_whatever_closing_does_is_logged_and_kept_from_the_worker(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    def close() -> Any:
        if error is not None:
            raise error

    with caplog.at_level(logging.ERROR, logger="perdure"):
        asyncio.run(closed("sink 'shop'", close))

    assert "sink 'shop' did not close" in caplog.text
