"""Scenarios: budgets, which are set by people, given to runs, reserved before a try and settled after it."""

from __future__ import annotations

from typing import Any

from perdure.core.budgets import ONE_TRY, Amounts, BudgetFilter, BudgetRow, Limits, NewBudget, Spent
from perdure.core.changes import Change, CommitOutcome
from perdure.core.records import IfBusy
from perdure.core.requests import Bounce, ForkRun, Started
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    attempt,
    end,
    hold,
    parent,
    park,
    requeue,
    scenario,
    step,
    wait,
)
from perdure.testing.conformance.parcels import budget, reserve, spent, tokens

UNKNOWN = 10**15


async def own(bench: Bench, **limits: int) -> NewBudget:
    """A budget for a run that is to be started, of a hundred tokens if nothing is said."""
    return NewBudget(await bench.new_id(), "its own", Limits(**(limits or {"tokens": 100})))


async def named(bench: Bench, name: str) -> BudgetRow | None:
    """The budget of this name."""
    rows = await bench.store.budgets(BudgetFilter(prefix=name))
    return next((row for row in rows if row.name == name), None)


class Budgeting(Harness):
    """What `set_budget`, `StartRun.budget`, `Reserve` and `Spent` promise."""

    # -- people ----------------------------------------------------------------------------------------------

    @scenario
    async def test_a_budget_is_there_as_it_was_set(self, bench: Bench) -> None:
        id, before = await bench.new_id(), await bench.store.now_us()
        limits = Limits(usd=9 * 10**18, tokens=2**53, steps=0, us=None)

        row = await bench.store.set_budget(NewBudget(id, "tenant:acme 🦉", limits), "ann 🦉")

        assert before <= row.created_at <= await bench.store.now_us()
        assert row == BudgetRow(
            id=id,
            name="tenant:acme 🦉",
            limits=limits,
            spent=Amounts(),
            reserved=Amounts(),
            rev=1,
            created_at=row.created_at,
            updated_at=row.created_at,
            by="ann 🦉",
        )
        assert await bench.store.get_budgets([id]) == [row] == await bench.store.budgets(BudgetFilter())

    @scenario
    async def test_a_budget_that_is_set_again_keeps_its_number_and_what_was_spent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first = await budget(bench, "agent:agent", by="ann", tokens=100, steps=5)
        await bench.commit(worker, reserve(claimed, "r", first), step(claimed, "s", spent=spent(first, tokens=3)))

        second = await budget(bench, "agent:agent", usd=7)

        assert (second.id, second.rev, second.created_at) == (first.id, 2, first.created_at)
        assert (second.limits, second.by) == (Limits(usd=7), None) and second.updated_at >= first.updated_at
        assert (second.spent, second.reserved) == (Amounts(tokens=3, steps=1), Amounts(tokens=10, steps=1))
        assert await bench.store.get_budgets([first.id]) == [second]

    @scenario
    async def test_budgets_are_listed_by_name_and_found_by_id(self, bench: Bench) -> None:
        names = ["tenant:a_b", "tenant:axb", "agent:z", "tenant:A", "tenant:a%", "tenant:é", "tenant:🦉", "tenant:ﬀ"]
        rows = {name: await budget(bench, name) for name in names}

        async def listed(**fields: Any) -> list[str]:
            return [row.name for row in await bench.store.budgets(BudgetFilter(**fields))]

        assert await listed() == sorted(names)
        assert await listed(prefix="tenant:a") == ["tenant:a%", "tenant:a_b", "tenant:axb"]
        assert await listed(prefix="tenant:a_") == ["tenant:a_b"] and await listed(prefix="tenant:a%") == ["tenant:a%"]
        assert await listed(prefix="tenant:🦉") == ["tenant:🦉"] and await listed(prefix="other") == []
        assert await listed(prefix="tenant:", limit=3) == sorted(names)[1:4]
        assert await listed(prefix="tenant:", limit=3, after=sorted(names)[3]) == sorted(names)[4:7]
        assert await listed(limit=0) == [] == await listed(after="tenant:🦉")
        some = [rows["tenant:é"].id, UNKNOWN, rows["agent:z"].id]
        assert [row.id for row in await bench.store.get_budgets(some)] == sorted(set(some) - {UNKNOWN})

    # -- whose ----------------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_may_be_started_with_a_budget_of_its_own(self, bench: Bench) -> None:
        given = await own(bench, tokens=7)
        worker, claimed = await bench.begin("t", key="k", budget=given)
        again = await own(bench)
        assert await bench.try_start("t", key="k", budget=again) == Started(claimed.run, "t", False)
        assert await bench.try_start("t", if_busy=IfBusy.JOIN, budget=again) == Started(claimed.run, "t", False)
        await bench.try_start("t", if_busy=IfBusy.REJECT, budget=again)

        (found,) = await bench.store.budgets(BudgetFilter())

        assert claimed.budgets == (given.id,) == (found.id,)
        assert (found.name, found.limits, found.rev, found.by) == (f"run:r{claimed.run}", Limits(tokens=7), 1, None)
        await bench.commit(worker, requeue(claimed))
        assert (await bench.claim_one(worker)).budgets == (given.id,)

    @scenario
    async def test_a_start_that_is_sent_again_leaves_its_budget_alone(self, bench: Bench) -> None:
        ask = await bench.ask("t", budget=await own(bench))
        await bench.store.start([ask])
        before = await bench.store.budgets(BudgetFilter())

        await bench.store.start([ask])

        assert await bench.store.budgets(BudgetFilter()) == before and len(before) == 1

    @scenario
    async def test_a_run_without_budgets_counts_against_none(self, bench: Bench) -> None:
        await budget(bench, "agent:agents")
        await budget(bench, "tenant:acme")
        _, claimed = await bench.begin("t")

        assert claimed.budgets == ()

    @scenario
    async def test_a_run_counts_against_all_that_its_parent_counts_against(self, bench: Bench) -> None:
        worker = await bench.worker()
        budgets = [await own(bench) for _ in range(3)]
        await bench.start("a", agent="a", budget=budgets[0])
        first = await bench.claim_one(worker, agents=("a",))
        await bench.start("b", agent="b", parent=parent(first, worker), budget=budgets[1])
        second = await bench.claim_one(worker, agents=("b",))
        await bench.start("c", agent="c", parent=parent(second, worker, detached=True))
        third = await bench.claim_one(worker, agents=("c",))
        await bench.start("d", agent="d", parent=parent(third, worker), budget=budgets[2])
        fourth = await bench.claim_one(worker, agents=("d",))

        ids = [each.id for each in budgets]
        assert [first.budgets, second.budgets, third.budgets, fourth.budgets] == [
            tuple(ids[:1]), tuple(ids[:2]), tuple(ids[:2]), tuple(ids),
        ]  # fmt: skip

    @scenario
    async def test_the_budgets_of_an_agent_and_of_a_tenant_count_from_the_next_claim_on(self, bench: Bench) -> None:
        worker = await bench.worker()
        run = await bench.start("t", tenant="acme", budget=await own(bench))
        tenant = await budget(bench, "tenant:acme")
        first = await bench.claim_one(worker)
        agent = await budget(bench, "agent:agent")
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)
        await bench.start("child", agent="other", parent=parent(second, worker))
        child = await bench.claim_one(worker, agents=("other",))

        mine = await named(bench, f"run:r{run}")
        assert mine is not None
        assert first.budgets == tuple(sorted([mine.id, tenant.id]))
        assert second.budgets == tuple(sorted([mine.id, tenant.id, agent.id]))
        assert child.budgets == second.budgets, "what its parent shares with others, too"

    @scenario
    async def test_a_fork_may_have_a_budget_of_its_own(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, end(claimed))
        ask = await bench.ask("fork", budget=await own(bench))

        await bench.store.fork(ForkRun(ask, 1, None, ()))

        assert ask.budget is not None
        assert (await bench.claim_one(worker)).budgets == (ask.budget.id,)

    # -- reserving and settling ------------------------------------------------------------------------------

    @scenario
    async def test_what_is_reserved_is_settled_with_the_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await budget(bench, "agent:a"), await budget(bench, "agent:b")

        await bench.commit(worker, reserve(claimed, "s", first, second, tokens=10))
        assert await tokens(bench, first, second) == [(0, 10), (0, 10)]
        await bench.commit(worker, step(claimed, "s", spent=spent(first, second, tokens=3)))

        assert await tokens(bench, first, second) == [(3, 0), (3, 0)]

    @scenario
    async def test_a_try_that_no_budget_has_enough_for_is_not_reserved(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        small = await budget(bench, tokens=9)

        outcome = await bench.store.commit(worker, [step(claimed, "s"), reserve(claimed, "r", small, tokens=10)])

        assert outcome == CommitOutcome(bounced={(claimed.run, 1, "r"): Bounce.BUDGET})
        assert await tokens(bench, small) == [(0, 0)]
        assert (await bench.steps(claimed.run)).keys() == {"s"}
        await bench.commit(worker, reserve(claimed, "r", small, tokens=9))
        assert await tokens(bench, small) == [(0, 9)]

    @scenario
    async def test_every_unit_that_is_limited_must_suffice(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        enough = {"usd": 5, "tokens": 5, "steps": 5, "us": 5}
        wanted = Amounts(**enough)
        for unit in enough:
            fits = await budget(bench, f"agent:fits {unit}", **{unit: 5})
            lacks = await budget(bench, f"agent:lacks {unit}", **{unit: 4})
            await bench.commit(worker, reserve(claimed, f"fits {unit}", fits, amounts=wanted))

            outcome = await bench.store.commit(worker, [reserve(claimed, f"lacks {unit}", lacks, amounts=wanted)])

            assert list(outcome.bounced) == [(claimed.run, 1, f"lacks {unit}")]
            (row,) = await bench.store.get_budgets([fits.id])
            assert row.reserved == wanted

    @scenario
    async def test_nothing_is_reserved_where_nothing_is_left(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        empty = await budget(bench, "agent:a", tokens=0)
        used_up = await budget(bench, "agent:b", tokens=5, steps=100)
        await bench.commit(worker, step(claimed, "s", spent=spent(used_up, tokens=5)))

        for each in (empty, used_up):
            unknown = reserve(claimed, each.name, each, amounts=ONE_TRY)
            assert (await bench.store.commit(worker, [unknown])).bounced
            await bench.commit(worker, reserve(claimed, each.name, each, amounts=Amounts(steps=1)))
        assert await tokens(bench, empty, used_up) == [(0, 0), (5, 0)], "what costs none of it goes on"
        unlimited = await budget(bench, "agent:c", steps=1)
        await bench.commit(worker, reserve(claimed, "t", unlimited, amounts=Amounts(usd=10**18, tokens=10**15)))

    @scenario
    async def test_the_reservations_of_one_batch_are_decided_in_their_order(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        one, two = await bench.claim(worker)
        shared = await budget(bench, tokens=25)
        batch: list[Change] = [
            reserve(one, "a", shared, tokens=10),
            reserve(two, "a", shared, tokens=10),
            reserve(one, "b", shared, tokens=10),
            reserve(two, "b", shared, tokens=5),
            reserve(one, "c", shared, tokens=1),
        ]

        outcome = await bench.store.commit(worker, batch)

        bounced = {(one.run, 1, "b"): Bounce.BUDGET, (one.run, 1, "c"): Bounce.BUDGET}
        assert outcome == CommitOutcome(bounced=bounced)
        assert await tokens(bench, shared) == [(0, 25)]

    @scenario
    async def test_what_a_batch_settles_before_a_reservation_makes_room_for_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, tokens=10)
        await bench.commit(worker, reserve(claimed, "a", shared, tokens=10))

        await bench.commit(
            worker, step(claimed, "a", spent=spent(shared, tokens=2)), reserve(claimed, "b", shared, tokens=8)
        )

        assert await tokens(bench, shared) == [(2, 8)]

    @scenario
    async def test_a_try_is_reserved_in_every_budget_or_in_none(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        large, small, other = [await budget(bench, f"agent:{n}", tokens=n) for n in (100, 5, 50)]

        batch: list[Change] = [
            reserve(claimed, "a", large, small, other, tokens=6),
            reserve(claimed, "b", other, large, tokens=50),
            reserve(claimed, "c", small, large, tokens=5),
            reserve(claimed, "d", large, other, tokens=1),
        ]
        outcome = await bench.store.commit(worker, batch)

        assert {place[2] for place in outcome.bounced} == {"a", "d"}
        assert await tokens(bench, large, small, other) == [(0, 55), (0, 5), (0, 50)]

    @scenario
    async def test_a_reservation_that_is_sent_again_is_one(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        small = await budget(bench, tokens=10)
        batch: list[Change] = [reserve(claimed, "a", small, tokens=10), reserve(claimed, "b", small, tokens=10)]

        for _ in range(3):
            outcome = await bench.store.commit(worker, batch)
            assert list(outcome.bounced) == [(claimed.run, 1, "b")]

        assert await tokens(bench, small) == [(0, 10)]

    @scenario
    async def test_nothing_is_reserved_for_a_step_on_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, tokens=10)
        reserving, record = reserve(claimed, "s", shared, tokens=10), step(claimed, "s", spent=spent(shared, tokens=9))

        for _ in range(2):
            await bench.commit(worker, reserving, record)

        assert await tokens(bench, shared) == [(9, 0)]

    @scenario
    async def test_what_a_record_says_is_spent_counts_with_or_without_a_reservation(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        reserved, unreserved, unnamed = [await budget(bench, f"agent:{n}") for n in "abc"]
        await bench.commit(worker, reserve(claimed, "s", reserved, unnamed, tokens=10))

        for _ in range(2):
            await bench.commit(worker, step(claimed, "s", spent=spent(reserved, unreserved, tokens=2_000)))

        assert await tokens(bench, reserved, unreserved, unnamed) == [(2_000, 0), (2_000, 0), (0, 0)]
        rows = await bench.store.get_budgets([reserved.id])
        assert rows[0].spent == Amounts(tokens=2_000, steps=1)
        assert (await bench.store.commit(worker, [reserve(claimed, "t", reserved)])).bounced

    @scenario
    async def test_a_record_beside_a_step_settles_what_that_has_reserved(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench)
        await bench.commit(
            worker, reserve(claimed, "s", shared, tokens=10), reserve(claimed, "other", shared, tokens=5)
        )

        for _ in range(2):
            await bench.commit(worker, step(claimed, "beside s", spent=Spent((shared.id,), Amounts(tokens=3), "s")))

        assert await tokens(bench, shared) == [(3, 5)]

    @scenario
    async def test_a_budget_is_set_only_where_nobody_has_set_it_since(self, bench: Bench) -> None:
        row = await budget(bench, "agent:agent", tokens=5)
        more = NewBudget(await bench.new_id(), "agent:agent", Limits(tokens=7))

        refused = await bench.store.set_budget(more, "ann", if_rev=row.rev + 1)
        taken = await bench.store.set_budget(more, "ann", if_rev=row.rev)
        late = await bench.store.set_budget(more, "bob", if_rev=row.rev)
        fresh = await bench.store.set_budget(NewBudget(await bench.new_id(), "agent:b", more.limits), None, if_rev=9)

        assert refused == row
        assert (taken.limits, taken.rev, taken.by) == (more.limits, row.rev + 1, "ann")
        assert late == taken
        assert fresh.rev == 1

    @scenario
    async def test_budgets_that_are_not_there_are_left_out(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench)
        both = (UNKNOWN, shared.id)

        await bench.commit(worker, reserve(claimed, "a", budgets=both), reserve(claimed, "b", budgets=(UNKNOWN,)))
        await bench.commit(worker, step(claimed, "a", spent=Spent(both, Amounts(tokens=3))), reserve(claimed, "c"))

        assert await tokens(bench, shared) == [(3, 0)]

    # -- tries that failed -----------------------------------------------------------------------------------

    @scenario
    async def test_a_try_that_failed_is_settled_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await budget(bench, "agent:a"), await budget(bench, "agent:b")
        await bench.commit(worker, reserve(claimed, "s", first, second, tokens=10))
        tried = attempt(claimed, "s", error=b"boom", ended_at=2_000, spent=spent(first, second, tokens=4))

        for _ in range(3):
            await bench.commit(worker, tried)

        assert await tokens(bench, first, second) == [(4, 0), (4, 0)]
        await bench.commit(worker, reserve(claimed, "s", first, second, tokens=10))
        assert await tokens(bench, first, second) == [(4, 10), (4, 10)]
        await bench.commit(worker, step(claimed, "s", attempt=2, spent=spent(first, second, tokens=5)))
        assert await tokens(bench, first, second) == [(9, 0), (9, 0)]

    @scenario
    async def test_a_try_that_failed_is_settled_before_the_next_one_is_reserved(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, tokens=14)
        await bench.commit(worker, reserve(claimed, "s", shared, tokens=10))
        tried = attempt(claimed, "s", error=b"boom", ended_at=2_000, spent=spent(shared, tokens=4))

        for _ in range(3):
            await bench.commit(worker, tried, reserve(claimed, "s", shared, tokens=10))

            assert await tokens(bench, shared) == [(4, 10)]

    @scenario
    async def test_a_try_without_a_reservation_by_its_claim_is_not_settled(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        shared = await budget(bench)
        tried: dict[str, Any] = {"error": b"boom", "ended_at": 2_000, "spent": spent(shared, tokens=4)}
        await bench.commit(worker, reserve(first, "s", shared), attempt(first, "other", **tried))
        assert await tokens(bench, shared) == [(0, 10)]
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)

        await bench.commit(worker, attempt(second, "s", **tried))

        assert await tokens(bench, shared) == [(10, 0)]

    # -- claims that are over --------------------------------------------------------------------------------

    @scenario
    async def test_what_a_claim_that_is_over_has_reserved_is_spent(self, bench: Bench) -> None:
        worker, other = await bench.worker(), await bench.worker()
        endings = ("ended", "requeued", "held", "parked", "given back", "taken over")
        rows = {name: await budget(bench, f"agent:{name}", tokens=15) for name in endings}
        asked = [await bench.ask(name) for name in endings]
        await bench.store.start(asked)
        claims = dict(zip(endings, await bench.claim(worker, limit=5), strict=False))
        claims["taken over"] = await bench.claim_one(other)
        for name, each in claims.items():
            await bench.commit(worker if name != "taken over" else other, reserve(each, "s", rows[name]))
        assert await tokens(bench, *rows.values()) == [(0, 10)] * 6

        await bench.commit(worker, end(claims["ended"]), requeue(claims["requeued"], 60), hold(claims["held"]))
        await bench.commit(worker, wait(claims["parked"], delay_s=60), park(claims["parked"]))
        await bench.store.give_back(worker, keep=[])
        await bench.die(other)

        assert await tokens(bench, *rows.values()) == [(10, 0)] * 6
        listed = await bench.store.budgets(BudgetFilter(prefix="agent:"))
        assert {(row.spent.tokens, row.reserved.tokens) for row in listed} == {(10, 0)}
        last, theirs = await bench.begin("last", agent="last")
        for number, row in enumerate(rows.values()):
            over = reserve(theirs, f"{number}", row, tokens=6)
            assert (await bench.store.commit(last, [over])).bounced
        assert (await budget(bench, "agent:held", tokens=1)).spent.tokens == 10

    @scenario
    async def test_what_an_older_claim_has_reserved_for_a_step_is_spent_when_it_is_tried_again(
        self, bench: Bench
    ) -> None:
        worker, first = await bench.begin("t")
        shared, other = await budget(bench, "agent:a", tokens=25), await budget(bench, "agent:b", tokens=25)
        await bench.commit(worker, reserve(first, "s", shared, other, tokens=10))
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)
        assert await tokens(bench, shared, other) == [(10, 0), (10, 0)]

        for _ in range(2):
            await bench.commit(worker, reserve(second, "s", shared, tokens=12))

        assert await tokens(bench, shared, other) == [(10, 12), (10, 0)]
        await bench.commit(worker, step(second, "s", spent=spent(shared, tokens=3)))
        assert await tokens(bench, shared, other) == [(13, 0), (10, 0)]

    @scenario
    async def test_a_try_that_bounces_leaves_what_an_older_claim_has_reserved(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        shared = await budget(bench, "agent:a", tokens=15)
        await bench.commit(worker, reserve(first, "s", shared, tokens=10))
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [reserve(second, "s", shared, tokens=10)])

        assert list(outcome.bounced) == [(first.run, 1, "s")]
        assert await tokens(bench, shared) == [(10, 0)]
        await budget(bench, "agent:a", tokens=20)
        await bench.commit(worker, reserve(second, "s", shared, tokens=10))
        assert await tokens(bench, shared) == [(10, 10)]

    @scenario
    async def test_an_old_fence_neither_reserves_nor_spends(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        lost, first, sound = await bench.claim(worker)
        shared = await budget(bench)
        await bench.commit(worker, step(first, "known"))
        await bench.store.give_back(worker, keep=[sound.run])
        refused = next(each for each in await bench.claim(worker) if each.run == first.run)

        batch: list[Change] = [
            reserve(lost, "a", shared),
            step(lost, "b", spent=spent(shared)),
            reserve(refused, "a", shared),
            step(refused, "b", spent=spent(shared)),
            step(refused, "known", spent=spent(shared)),
            reserve(sound, "a", shared, tokens=1),
            step(sound, "b", spent=spent(shared, tokens=2)),
        ]
        outcome = await bench.store.commit(worker, batch)

        assert (set(outcome.lost), set(outcome.refused)) == ({lost.run}, {first.run})
        assert await tokens(bench, shared) == [(2, 1)]
