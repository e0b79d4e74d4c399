"""Scenarios: messages that their senders have named, each of which is sent once."""

from __future__ import annotations

from typing import Any

from perdure.core.changes import CommitOutcome
from perdure.core.limits import MESSAGE_MEMORY_US
from perdure.core.requests import Bounce, NotSent, Sent
from perdure.testing.conformance.harness import Bench, Harness, blob, bury, close, in_threads, scenario, send

HOURS_S = MESSAGE_MEMORY_US / 1_000_000


async def sent(bench: Bench, thread_id: str = "t", key: str | None = "k", **fields: Any) -> Sent:
    """Send a message of this name, under a fresh number."""
    (outcome,) = await bench.store.send([await bench.message(thread_id, key=key, **fields)])
    assert isinstance(outcome, Sent), outcome
    return outcome


class Keying(Harness):
    """What `NewMessage.key` promises."""

    @scenario
    async def test_a_message_of_a_key_that_was_sent_is_that_message(self, bench: Bench) -> None:
        await bench.start("t")
        first, put = await bench.message("t", key="k", payload=b"first"), blob(b"unwanted" * 10_000)
        (place,) = await bench.store.send([first])
        thread = (await bench.thread("t")).id
        assert place == Sent(thread, 1, None)

        second = await sent(bench, payload=b"second", blobs=(put,))

        assert second == Sent(thread, 1, first.id)
        assert await bench.store.send([first]) == [place]
        assert [(row.id, row.payload) for row in await bench.mailbox("t")] == [(first.id, b"first")]
        assert await bench.store.blobs(thread, [put.digest]) == {}

    @scenario
    async def test_keys_are_those_of_a_thread_and_messages_without_one_are_all_different(self, bench: Bench) -> None:
        await bench.start("t")
        await bench.start("other")

        places = [await sent(bench, name, key) for name in ("t", "other") for key in ("k", "k 🦉", "", None, None)]

        assert len({(place.thread, place.seq) for place in places}) == 10
        assert len(await bench.mailbox("t")) == 5 == len(await bench.mailbox("other"))

    @scenario
    async def test_a_key_is_known_for_ever(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        names = ("received", "buried")
        first, second = [await bench.message("t", key=name) for name in names]
        await bench.store.send([first, second])
        received, buried = await bench.mailbox("t")
        await bench.commit(worker, close(claimed, "m", take=received.seq), bury(claimed, buried.seq))
        await bench.advance_s(2 * HOURS_S)
        for number in range(3):
            last = await sent(bench, key=f"later {number}")
            await bench.commit(worker, close(claimed, f"l{number}", take=last.seq))
        await bench.advance_s(2 * HOURS_S)

        again = [await sent(bench, key=name) for name in names]
        assert again == [Sent(row.thread, row.seq, row.id) for row in (received, buried)]
        places = [Sent(row.thread, row.seq) for row in (received, buried)]
        assert await bench.store.send([first, second]) == places
        assert await bench.mailbox("t") == []

    @scenario
    async def test_a_key_that_was_sent_finds_its_message_in_a_full_mailbox_too(self, bench: Bench) -> None:
        await bench.start("t")
        first = await sent(bench)
        with self.mailbox_max(1):
            assert (await sent(bench)).seq == first.seq
            message = await bench.message("t", key="other")
            assert await bench.store.send([message]) == [NotSent(Bounce.FULL)]

        assert (await sent(bench, key="other")).seq > first.seq

    @scenario
    async def test_a_key_is_free_where_its_message_was_not_sent(self, bench: Bench) -> None:
        nowhere = await bench.message("t", key="k")
        assert await bench.store.send([nowhere]) == [NotSent(Bounce.NO_THREAD)]
        await bench.start("t")

        await sent(bench)

        assert len(await bench.mailbox("t")) == 1

    @scenario
    async def test_of_messages_of_one_key_in_a_group_the_first_is_sent(self, bench: Bench) -> None:
        await bench.start("t")
        group = [await bench.message("t", key=key, payload=str(n).encode()) for n, key in enumerate("abaab")]

        outcomes = await bench.store.send(group)

        thread, ids = (await bench.thread("t")).id, [each.id for each in group]
        assert outcomes == [
            Sent(thread, 1), Sent(thread, 2), Sent(thread, 1, ids[0]), Sent(thread, 1, ids[0]), Sent(thread, 2, ids[1]),
        ]  # fmt: skip
        assert [row.payload for row in await bench.mailbox("t")] == [b"0", b"1"]
        assert await bench.store.send(group[::-1]) == outcomes[::-1]

    @scenario
    async def test_a_run_sends_a_message_of_a_key_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("sender")
        await bench.start("t", agent="other")
        first, second, third = [await bench.message("t", key="k", payload=data) for data in (b"1", b"2", b"3")]

        await bench.commit(worker, send(claimed, "a", first), send(claimed, "b", second))
        await bench.commit(worker, send(claimed, "c", third))

        assert (await bench.steps(claimed.run)).keys() == {"a", "b", "c"}
        assert [row.payload for row in await bench.mailbox("t")] == [b"1"]
        assert (await sent(bench)).seq == 1

    @scenario
    async def test_a_run_that_sends_a_known_key_is_not_bounced_by_a_full_mailbox(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("sender")
        await bench.start("t", agent="other")
        await sent(bench)
        with self.mailbox_max(1):
            known, new = await bench.message("t", key="k"), await bench.message("t", key="new")

            outcome = await bench.store.commit(worker, [send(claimed, "a", known), send(claimed, "b", new)])

        assert outcome == CommitOutcome(bounced={(claimed.run, 1, "b"): Bounce.FULL})
        assert (await bench.steps(claimed.run)).keys() == {"a"}

    @scenario
    async def test_a_message_of_one_key_that_many_send_at_once_is_sent_once(self, bench: Bench) -> None:
        await bench.start("t")
        places: list[Sent] = []

        async def send_them(own: Bench, number: int) -> None:
            for turn in range(5):
                places.append(await sent(own, key=f"k{turn}"))

        await in_threads(3, bench, send_them)

        assert len(places) == 15 and len({place.seq for place in places}) == 5
        assert len(await bench.mailbox("t")) == 5
