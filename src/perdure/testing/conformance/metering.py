"""Scenarios: meters, which are filed with what they are about, and their sums."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.changes import Change
from perdure.core.meters import QUANTITY_MAX, UNIT, Meter, MeterRow, UsageBy, UsageFilter, UsageRow
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    close,
    end,
    fail,
    requeue,
    scenario,
    send,
    settle,
    step,
)
from perdure.testing.conformance.parcels import deliver, handed, meter, parcel

TENANT, AGENT, RUN, DAY = UsageBy.TENANT, UsageBy.AGENT, UsageBy.RUN, UsageBy.DAY
DAY_US = 86_400_000_000


async def read(bench: Bench, run: int) -> list[tuple[str, int, int, str]]:
    """A run's meters: of which step and try, which of its, and of what."""
    return [(row.key, row.attempt, row.number, row.name) for row in await bench.store.meters(run)]


async def used(bench: Bench, by: UsageBy, **fields: Any) -> list[tuple[str | int, str, int, int]]:
    """Sums, in whole units, and of how many meters."""
    rows = await bench.store.usage(UsageFilter(by, **fields))
    return [(row.group, row.name, row.quantity // UNIT, row.entries) for row in rows]


class Metering(Harness):
    """What `meters` promise."""

    # -- rows ------------------------------------------------------------------------------------------------

    @scenario
    async def test_the_meters_of_a_step_are_filed_with_its_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        usd = Meter("usd", 1, b'{"model":"\xf0\x9f\xa6\x89"}')
        most = Meter("tokens 🦉", QUANTITY_MAX * UNIT)
        before = await bench.store.now_us()

        await bench.commit(worker, step(claimed, "s", attempt=2, meters=(usd, most, usd)))

        found = await bench.store.meters(claimed.run)
        moment = found[0].at
        assert before <= moment <= await bench.store.now_us()
        assert found == [
            MeterRow(
                run=claimed.run,
                super_step=1,
                key="s",
                attempt=2,
                fence=claimed.fence,
                number=number,
                name=each.name,
                quantity=each.quantity,
                attributes=each.attributes,
                at=moment,
            )
            for number, each in enumerate((usd, most, usd))
        ]

    @scenario
    async def test_a_try_that_failed_has_meters_too(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        tries = [
            attempt(claimed, "s", number, error=b"boom", ended_at=2_000, meters=(meter("a"), meter("b")))
            for number in (1, 2)
        ]
        await bench.commit(worker, tries[0], step(claimed, "other", meters=(meter("c"),)))
        await bench.commit(worker, tries[1], step(claimed, "s", attempt=3, meters=(meter("d"),)))

        assert await read(bench, claimed.run) == [
            ("other", 1, 0, "c"),
            ("s", 1, 0, "a"),
            ("s", 1, 1, "b"),
            ("s", 2, 0, "a"),
            ("s", 2, 1, "b"),
            ("s", 3, 0, "d"),
        ]

    @scenario
    async def test_whatever_files_a_record_files_its_meters(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect, seq = await bench.intended(worker, claimed, "e"), await bench.send("t")
        measured: dict[str, Any] = {"meters": (meter(),)}
        message = await bench.message("t")

        await bench.commit(
            worker,
            close(claimed, "close", take=seq, record=measured),
            send(claimed, "send", message, **measured),
            deliver(claimed, "deliver", await parcel(bench), **measured),
            msgspec.structs.replace(settle(claimed, effect), record=step(claimed, "e", **measured)),
        )

        assert [row[0] for row in await read(bench, claimed.run)] == ["close", "deliver", "e", "send"]

    @scenario
    async def test_a_batch_that_is_sent_again_is_measured_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first: list[Change] = [
            attempt(claimed, "s", 1, error=b"boom", ended_at=2_000, meters=(meter("a"), meter("b"))),
            step(claimed, "r", meters=(meter("c"),)),
        ]
        last: list[Change] = [step(claimed, "s", attempt=2, meters=(meter("d"),)), end(claimed)]
        await bench.commit(worker, *first)
        rows = await bench.store.meters(claimed.run)

        for batch in (first, last, last):
            await bench.commit(worker, *batch)

        found = await bench.store.meters(claimed.run)
        assert found[:3] == rows and [row.name for row in found] == ["c", "a", "b", "d"]

    @scenario
    async def test_a_record_that_is_sent_again_by_its_old_owner_is_measured_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        record = step(claimed, "s", meters=(meter("a"),))
        await bench.commit(worker, record, requeue(claimed))
        await bench.claim_one(worker)

        await bench.commit(worker, record)

        assert await read(bench, claimed.run) == [("s", 1, 0, "a")]

    @scenario
    async def test_the_same_try_under_another_claim_is_another(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, attempt(first, "s", error=b"boom", meters=(meter("a"),)))
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)

        await bench.commit(worker, attempt(second, "s", error=b"boom", meters=(meter("b"),)))

        rows = await bench.store.meters(first.run)
        assert [(row.fence, row.name) for row in rows] == [(first.fence, "a"), (second.fence, "b")]

    @scenario
    async def test_meters_stay_when_a_step_is_to_run_again(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        tried = attempt(first, "s", error=b"boom", ended_at=2_000, meters=(meter("a"),))
        failed = step(first, "s", failed=True, attempt=2, meters=(meter("b"),))
        await bench.commit(worker, tried, failed, requeue(first, drop_keys=("s",)))
        second = await bench.claim_one(worker)
        await bench.commit(worker, step(second, "s", failed=True, meters=(meter("c"),)), fail(second))
        await bench.store.retry(first.run, ["s"])
        third = await bench.claim_one(worker)

        await bench.commit(worker, step(third, "s", meters=(meter("d"),)))

        rows = await bench.store.meters(first.run)
        assert [(row.attempt, row.fence, row.name) for row in rows] == [
            (1, first.fence, "a"),
            (1, second.fence, "c"),
            (1, third.fence, "d"),
            (2, first.fence, "b"),
        ]

    @scenario
    async def test_what_is_not_written_is_not_measured(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        first, lost, sound = await bench.claim(worker)
        await bench.commit(worker, step(first, "known"))
        await bench.store.give_back(worker, keep=[sound.run])
        refused = await bench.claim_one(worker, limit=1)
        assert refused.run == first.run
        measured: dict[str, Any] = {"meters": (meter(),)}

        with self.lane_max(1):
            await handed(bench, worker, sound)
            outcome = await bench.store.commit(
                worker,
                [
                    step(lost, "a", **measured),
                    step(refused, "b", **measured),
                    attempt(refused, "c", error=b"boom", **measured),
                    step(refused, "known", **measured),
                    close(sound, "gone", take=99, record=measured),
                    send(sound, "nowhere", await bench.message("nobody"), **measured),
                    deliver(sound, "full", await parcel(bench), **measured),
                    step(sound, "s", **measured),
                    step(sound, "s", attempt=2, meters=(meter("twice"),)),
                ],
            )

        assert (set(outcome.lost), set(outcome.refused)) == ({lost.run}, {refused.run})
        assert {place[2] for place in outcome.bounced} == {"gone", "nowhere", "full"}
        assert await read(bench, lost.run) == [] == await read(bench, refused.run)
        assert await read(bench, sound.run) == [("s", 1, 0, "tokens")]

    @scenario
    async def test_a_runs_meters_are_read_in_order_and_in_pages(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        keys = ["z", "B", "a#10", "é", "🦉", "a#2", "ﬀ"]
        three = (meter("a"), meter("b"), meter("c"))
        await bench.commit(worker, *(step(claimed, key, seq=n, meters=three) for n, key in enumerate(keys)))
        await bench.commit(worker, again(claimed, 2), step(claimed, "A", super_step=2, meters=three))
        first_page = await bench.store.meters(claimed.run, limit=5)

        rows = await bench.store.meters(claimed.run)

        expected = [(1, key, number) for key in sorted(keys) for number in range(3)] + [(2, "A", n) for n in range(3)]
        assert [(row.super_step, row.key, row.number) for row in rows] == expected
        assert first_page == rows[:5]
        assert await bench.store.meters(claimed.run, limit=4, offset=5) == rows[5:9]
        assert await bench.store.meters(claimed.run, offset=len(rows)) == []
        assert await bench.store.meters(claimed.run, limit=0) == [] == await bench.store.meters(claimed.run, limit=-1)
        assert await bench.store.meters(10**15) == []

    # -- sums ------------------------------------------------------------------------------------------------

    @scenario
    async def test_usage_is_summed_by_tenant_agent_run_and_day(self, bench: Bench) -> None:
        worker = await bench.worker()
        told = [("a", "ann", "acme"), ("b", "bob", "acme"), ("c", "ann", None), ("d", "ann", "zeta")]
        runs = [await bench.start(name, agent=agent, tenant=tenant) for name, agent, tenant in told]
        claims = {each.run: each for each in await bench.claim(worker, agents=("ann", "bob"))}
        for number, run in enumerate(runs):
            measured = (meter("usd", number + 1), meter("tokens", 10), meter("tokens", 5))
            await bench.commit(worker, step(claims[run], "s", meters=measured))

        assert await used(bench, TENANT) == [
            ("", "tokens", 15, 2), ("", "usd", 3, 1),
            ("acme", "tokens", 30, 4), ("acme", "usd", 3, 2),
            ("zeta", "tokens", 15, 2), ("zeta", "usd", 4, 1),
        ]  # fmt: skip
        assert await used(bench, AGENT, name="usd") == [("ann", "usd", 8, 3), ("bob", "usd", 2, 1)]
        assert await used(bench, RUN, name="tokens") == [(run, "tokens", 15, 2) for run in sorted(runs)]
        days = {row.at // DAY_US for run in runs for row in await bench.store.meters(run)}
        by_day = await used(bench, DAY)
        assert {row[0] for row in by_day} == days and sum(row[2] for row in by_day if row[1] == "usd") == 10

    @scenario
    async def test_sums_are_exact_and_may_be_larger_than_64_bits(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        most, least = Meter("a", QUANTITY_MAX * UNIT), Meter("a", 1)
        await bench.commit(worker, step(claimed, "s", meters=(most,) * 20 + (least,) * 7))
        await bench.commit(worker, step(claimed, "z", meters=(Meter("zero", 0),)))

        for by, group in ((TENANT, ""), (AGENT, "agent"), (RUN, claimed.run)):
            assert await bench.store.usage(UsageFilter(by)) == [
                UsageRow(group, "a", 20 * QUANTITY_MAX * UNIT + 7, 27),
                UsageRow(group, "zero", 0, 1),
            ]
        (found, _) = await bench.store.usage(UsageFilter(DAY))
        assert (found.quantity, found.entries) == (20 * QUANTITY_MAX * UNIT + 7, 27)

    @scenario
    async def test_usage_is_summed_of_what_is_asked_for(self, bench: Bench) -> None:
        first, a = await bench.begin("a", agent="ann", tenant="acme")
        second, b = await bench.begin("b", agent="bob", tenant="zeta")
        await bench.commit(first, step(a, "s", meters=(meter("usd", 1), meter("tokens", 2))))
        await bench.commit(second, step(b, "s", meters=(meter("usd", 4),)))

        assert await used(bench, RUN, name="tokens") == [(a.run, "tokens", 2, 1)]
        assert await used(bench, RUN, tenant="zeta") == [(b.run, "usd", 4, 1)]
        assert await used(bench, RUN, agent="ann", name="usd") == [(a.run, "usd", 1, 1)]
        assert await used(bench, AGENT, run=b.run) == [("bob", "usd", 4, 1)]
        assert await used(bench, AGENT, tenant="nobody") == [] == await used(bench, AGENT, run=10**15)

    @scenario
    async def test_usage_is_summed_from_a_time_to_before_another(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, step(claimed, "a", meters=(meter("a"),)))
        (row,) = await bench.store.meters(claimed.run)

        async def between(since: int | None, until: int | None) -> int:
            return len(await bench.store.usage(UsageFilter(RUN, since=since, until=until)))

        assert await between(row.at, row.at + 1) == 1 and await between(None, row.at + 1) == 1
        assert await between(row.at, None) == 1
        assert await between(row.at + 1, None) == 0 and await between(None, row.at) == 0
        assert await between(row.at, row.at) == 0

    @scenario
    async def test_usage_is_summed_after_one_claim_up_to_another(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, step(first, "a", meters=(meter("n", 1),)), fail(first))
        await bench.store.retry(first.run, [])
        second = await bench.claim_one(worker)
        await bench.commit(worker, step(second, "b", meters=(meter("n", 2),)), requeue(second))
        third = await bench.claim_one(worker)
        await bench.commit(worker, step(third, "c", meters=(meter("n", 4),)), end(third))

        async def of(after: int | None, upto: int | None) -> int:
            rows = await used(bench, RUN, run=first.run, after_fence=after, fence=upto)
            return rows[0][2] if rows else 0

        assert await of(None, first.fence) == 1
        assert await of(first.fence, third.fence) == 6 == await of(first.fence, None)
        assert await of(first.fence, second.fence) == 2
        assert await of(0, 0) == 0 and await of(None, None) == 7

    @scenario
    async def test_usage_is_read_in_order_and_in_pages(self, bench: Bench) -> None:
        worker = await bench.worker()
        tenants = ["b", "B", "é", "🦉", "a", None, "ﬀ"]
        names = ["usd", "Tokens", "é", "🦉", "ﬀ"]
        runs = [await bench.start(f"t{n}", tenant=tenant) for n, tenant in enumerate(tenants)]
        claims = await bench.claim(worker)
        assert len(claims) == len(runs)
        await bench.commit(worker, *(step(each, "s", meters=tuple(meter(name) for name in names)) for each in claims))

        for by, groups in ((TENANT, [tenant or "" for tenant in tenants]), (RUN, runs)):
            rows = await bench.store.usage(UsageFilter(by))
            places = [(row.group, row.name) for row in rows]
            assert places == [(group, name) for group in sorted(groups, key=_plain) for name in sorted(names)]
            pages, after = [], None
            while page := await bench.store.usage(UsageFilter(by, limit=4, after=after)):
                assert len(page) <= 4
                pages += page
                after = page[-1].group, page[-1].name
            assert pages == rows
            assert await bench.store.usage(UsageFilter(by, limit=0)) == []
        ((day, name), *_) = [(row.group, row.name) for row in await bench.store.usage(UsageFilter(DAY))]
        assert len(await bench.store.usage(UsageFilter(DAY, after=(day, name)))) >= len(names) - 1


def _plain(group: str | int) -> tuple[int, str]:
    """In the order of numbers, or of code points."""
    return (group, "") if isinstance(group, int) else (0, group)
