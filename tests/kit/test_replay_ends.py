"""Recorded runs against code that ends otherwise: results, states, errors, and what does not load any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import perdure
from perdure import Again, Retry
from tests.kit.recorded import Seen, changed, findings, recorded, refuse, replayed, search, shop, two_searches
from tests.runtime.world import fresh_app


@dataclass
class Counted:
    items: list[int] = field(default_factory=list)


def test_another_result_is_shown_with_both_sides_where_they_part() -> None:
    async def before() -> dict[str, Any]:
        return {"tea": {"cups": [1, 2]}, "milk": True}

    history, app = changed(before)

    @app.agent
    async def agent() -> dict[str, Any]:
        return {"milk": True, "tea": {"cups": [1, 3, 4]}}

    outcome = replayed(app, history)

    assert [(each.where, each.recorded, each.now) for each in outcome.differences] == [
        ("result $.tea.cups[1]", "2", "3"),
        ("result $.tea.cups[2]", "nothing there", "4"),
    ]
    assert outcome.ok


def test_other_arguments_and_another_state_at_the_boundary_are_shown() -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea")
    after = fresh_app()

    @after.agent
    async def order(item: str, *, more: int = 2, state: Seen) -> str | Again:
        await asyncio.gather(*(search(f"{item}{n}") for n in range(3)))
        state.items.append("more")
        if more:
            return Again(item, more=more - 1)
        return "tea"

    outcome = replayed(after, history)

    first = [each for each in outcome.differences if each.super_step == 1]
    assert [(each.finding.value, each.where) for each in first if each.finding != "not asked for"] == [
        ("other arguments", "arguments $[0][0]"),
        ("other state", "state $.items[0]"),
        ("other state", "state $.items[1]"),
        ("other state", "state $.items[2]"),
        ("other state", "state …"),
    ]
    assert ("other result", 3, "result") in findings(outcome)


def test_an_exception_where_the_record_goes_on_breaks_it() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        await search("tea")
        raise KeyError("milk")

    outcome = replayed(app, history)

    assert findings(outcome)[-1] == ("raises now", 1, "end")
    assert not outcome.ok
    assert outcome.differences[-1].now == "KeyError: 'milk'"
    assert "raise KeyError" in str(outcome)


def test_a_result_that_cannot_be_recorded_is_an_exception_too() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> Any:
        return object()

    assert findings(replayed(app, history))[-1] == ("raises now", 1, "end")


async def failing() -> str:
    await asyncio.gather(refuse("tea"), search("tea"))
    return ""


def test_a_run_that_failed_fails_the_same_way() -> None:
    history, app = changed(failing)
    app.agent(name="agent")(failing)

    outcome = replayed(app, history)

    assert (history.run.state, findings(outcome)) == ("failed", [])


def test_a_branch_that_was_cut_off_by_a_failure_is_no_difference() -> None:
    @perdure.step
    async def never() -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    async def agent() -> None:
        await asyncio.gather(refuse("tea"), never())

    history, app = changed(agent)
    app.agent(agent)

    replayed(app, history).assert_same()


def test_a_failed_run_that_would_fail_otherwise_or_end_is_told_apart() -> None:
    history, otherwise = changed(failing)
    mended = fresh_app()

    @otherwise.agent(name="agent")
    async def agent() -> str:
        raise ValueError("other")

    @mended.agent(name="agent")
    async def agent2() -> str:
        return "well"

    assert ("fails otherwise", 1, "end") in findings(replayed(otherwise, history))
    outcome = replayed(mended, history)
    assert ("ends otherwise", 1, "end") in findings(outcome)
    assert outcome.differences[-1].now == 'returns "well"'
    assert outcome.ok


def test_a_run_that_ends_where_it_went_on_ends_otherwise() -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea")
    after = fresh_app()

    @after.agent
    async def order(item: str, *, more: int = 2, state: Seen) -> str | Again:
        return "at once" if more == 2 else Again(item)

    ends = [each for each in replayed(after, history).differences if each.finding == "ends otherwise"]

    assert [(each.super_step, each.now) for each in ends] == [
        (1, 'returns "at once"'),
        (3, 'Again ["tea0tea00tea0tea00"]'),
    ]
    assert ends[0].recorded == 'Again [["tea0tea0"], {"more": 1}]'


def test_arguments_a_state_and_a_record_that_do_not_load_any_more_are_reported() -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea")
    arguments, state, record = fresh_app(), fresh_app(), fresh_app()

    @arguments.agent(name="order")
    async def order1(item: str, *, size: int, state: Seen) -> None: ...

    @state.agent(name="order")
    async def order2(item: str, *, more: int = 0, state: Counted) -> None: ...

    @record.agent(name="order")
    async def order3(item: str, *, more: int = 0) -> None:
        await asyncio.gather(perdure.step(search.fn, returns=list[int])(f"{item}0"))

    assert findings(replayed(arguments, history))[0] == ("does not load", 1, "parameter 'size'")
    assert ("does not load", 2, "state") in findings(replayed(state, history))
    assert ("does not load", 1, "record") in findings(replayed(record, history))
    assert not replayed(state, history).ok


def test_a_run_that_is_held_as_diverged_is_mended_by_code_that_asks_for_what_is_recorded() -> None:
    app = fresh_app()
    asked = iter(["tea", "coffee"])

    @app.agent(retry=Retry(attempts=2, delay_s=0))
    async def agent() -> list[str]:
        found = await search(next(asked))
        raise ConnectionError(f"the agent is tried again after {found}")

    history = recorded(app, agent)
    mended = fresh_app()

    @mended.agent(name="agent")
    async def agent2() -> list[str]:
        return await search("tea") + await search("milk")

    assert (history.run.state, history.run.reason) == ("held", "diverged")
    asked = iter(["coffee"])
    assert ("diverged", 1, "search") in findings(replayed(app, history))
    outcome = replayed(mended, history)
    assert (outcome.differences, outcome.records) == ((), 1)
