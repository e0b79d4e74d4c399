"""Effects: what the agent is told where no further try is made."""

from __future__ import annotations

import pytest

import perdure
from perdure import Budget, OutcomeUnknown, RunFailed
from perdure.core.effects import EffectState
from tests.runtime.paying import QUICK, Provider, charging, ledger, run, states
from tests.runtime.world import asked, fresh_app


def test_what_the_provider_says_did_not_happen_after_the_last_try_has_failed_and_is_not_unknown() -> None:
    app, provider = fresh_app(), Provider("lost before", "lost before", "lost before")
    agent = charging(app, provider, verify=provider.ask)

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(RunFailed, match=r"ConnectionError: it was tried 3 times, .* did not happen: its provider"):
            await handle.result(timeout=20)
        assert await states(app) == ["failed"]
        await app.retry(handle.run_id)
        assert await handle.result(timeout=20) == "receipt 1 for tea"

    run(app, main)
    assert len(provider.calls) == 4


def test_a_budget_that_is_spent_hides_no_try_that_may_have_happened() -> None:
    """An agent that does without what it cannot pay for must know that it may have paid."""
    app, provider = fresh_app(), Provider("lost after")
    charge = perdure.effect(provider.charge, name="charge", retry=QUICK, on_unknown="retry")

    @app.agent
    async def agent() -> str:
        try:
            return await charge("tea")
        except OutcomeUnknown as unknown:
            return f"{unknown.effect_id} {unknown.idempotency_key} {unknown}"

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(steps=1))
        await app.resume((await asked(app, handle))["budget"], {"stop": True})
        told = await handle.result(timeout=20)
        [row] = await ledger(app)
        assert row.state is EffectState.UNKNOWN
        assert told.startswith(f"e{row.id} {row.idempotency_key} ") and "it is not tried again" in told

    run(app, main)
    assert len(provider.calls) == 1
