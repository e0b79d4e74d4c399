"""Scenarios: messages, from the sender to the record of the step that received them, or to the dead letters."""

from __future__ import annotations

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import LIST_ROWS_MAX, MESSAGE_MEMORY_US
from perdure.core.records import Message, RunState, WaitKind
from perdure.core.requests import Bounce, NotSent, Sent
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    blob,
    bury,
    close,
    end,
    park,
    requeue,
    scenario,
    send,
    step,
    wait,
)


class Mailing(Harness):
    """What `send`, `SendMessage` and a `CloseWait` that takes a message promise."""

    @scenario
    async def test_a_message_is_there_as_it_was_sent(self, bench: Bench) -> None:
        await bench.start("t")
        large = blob(b"large" * 10_000)
        message = await bench.message("t", "🦉", sender="r7", payload=b"\0data", blobs=(large,))
        before = await bench.store.now_us()

        assert await bench.store.send([message]) == [Sent((await bench.thread("t")).id, 1)]

        (found,) = await bench.mailbox("t")
        assert before <= found.sent_at <= await bench.store.now_us()
        assert found == Message(
            id=message.id,
            thread=(await bench.thread("t")).id,
            seq=1,
            sender="r7",
            label="🦉",
            payload=b"\0data",
            sent_at=found.sent_at,
            dead=None,
        )
        assert await bench.store.blobs(found.thread, [large.digest]) == {large.digest: large.data}

    @scenario
    async def test_messages_stay_in_order_in_each_mailbox(self, bench: Bench) -> None:
        for name in ("a", "b"):
            await bench.start(name)
        group = [await bench.message(name, payload=str(n).encode()) for n, name in enumerate("abaab")]

        outcomes = await bench.store.send(group)
        await bench.send("b", payload=b"5")

        assert [each.seq for each in outcomes if isinstance(each, Sent)] == [1, 1, 2, 3, 2]
        assert [(row.seq, row.payload) for row in await bench.mailbox("a")] == [(1, b"0"), (2, b"2"), (3, b"3")]
        assert [(row.seq, row.payload) for row in await bench.mailbox("b")] == [(1, b"1"), (2, b"4"), (3, b"5")]

    @scenario
    async def test_an_idle_thread_keeps_its_messages_for_the_next_run(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, end(claimed))
        seq = await bench.send("t")
        await bench.start("t")
        second = await bench.claim_one(worker)

        await bench.commit(worker, close(second, "m", b"hello", take=seq))

        assert await bench.mailbox("t") == [] and await bench.steps(second.run) == {"m": b"hello"}

    @scenario
    async def test_a_mailbox_is_read_in_pages(self, bench: Bench) -> None:
        await bench.start("t")
        thread = (await bench.thread("t")).id
        await bench.store.send([await bench.message("t") for _ in range(5)])

        async def page(limit: int, after: int) -> list[int]:
            return [row.seq for row in await bench.store.mailbox(thread, limit=limit, after=after)]

        assert (await page(2, 0), await page(2, 2), await page(9, 4), await page(9, 5)) == ([1, 2], [3, 4], [5], [])
        assert await page(0, 0) == [] == await page(-1, 0)
        assert await bench.store.mailbox(10**15) == []

    @scenario
    async def test_a_page_of_a_mailbox_is_cut_at_the_most_there_may_be(self, bench: Bench) -> None:
        await bench.start("t")
        await bench.store.send([await bench.message("t") for _ in range(LIST_ROWS_MAX + 1)])

        page = await bench.store.mailbox((await bench.thread("t")).id, limit=10**9)

        assert [row.seq for row in page] == list(range(1, LIST_ROWS_MAX + 1))

    @scenario
    async def test_an_empty_group_is_sent(self, bench: Bench) -> None:
        assert await bench.store.send([]) == []

    # -- receiving -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_message_is_consumed_with_the_record_of_its_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.store.send([await bench.message("t") for _ in range(3)])
        await bench.commit(worker, wait(claimed, "m", WaitKind.MESSAGE))

        await bench.commit(worker, close(claimed, "m", b"hello", take=2))

        assert [row.seq for row in await bench.mailbox("t")] == [1, 3]
        assert await bench.steps(claimed.run) == {"m": b"hello"} and await bench.waits(claimed.run) == {}

    @scenario
    async def test_a_message_is_received_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.store.send([await bench.message("t") for _ in range(2)])
        await bench.commit(worker, wait(claimed, "b", WaitKind.MESSAGE), close(claimed, "a", take=1))

        for seq in (1, 7):
            late = close(claimed, "b", take=seq, record={"seq": 2})
            outcome = await bench.store.commit(worker, [late, step(claimed, f"other {seq}", seq=3)])
            assert outcome == CommitOutcome(bounced={(claimed.run, 1, "b"): Bounce.GONE})

        assert set(await bench.steps(claimed.run)) == {"a", "other 1", "other 7"}
        assert set(await bench.waits(claimed.run)) == {"b"} and [row.seq for row in await bench.mailbox("t")] == [2]

    @scenario
    async def test_of_two_steps_in_a_batch_that_take_one_message_the_first_has_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        seq = await bench.send("t")
        both = [close(claimed, "a", take=seq), close(claimed, "b", take=seq, record={"seq": 2})]

        for _ in range(2):
            outcome = await bench.store.commit(worker, both)
            assert outcome == CommitOutcome(bounced={(claimed.run, 1, "b"): Bounce.GONE})

        assert set(await bench.steps(claimed.run)) == {"a"} and await bench.mailbox("t") == []

    @scenario
    async def test_a_receipt_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.store.send([await bench.message("t") for _ in range(2)])
        batch: list[Change] = [wait(claimed, "m", WaitKind.MESSAGE), close(claimed, "m", take=1)]

        for _ in range(3):
            await bench.commit(worker, *batch)

        assert [row.seq for row in await bench.mailbox("t")] == [2] and await bench.waits(claimed.run) == {}

    @scenario
    async def test_a_receipt_takes_from_the_runs_own_mailbox_only(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("other")
        await bench.send("other")

        outcome = await bench.store.commit(worker, [close(claimed, "m", take=1)])

        assert outcome == CommitOutcome(bounced={(claimed.run, 1, "m"): Bounce.GONE})
        assert len(await bench.mailbox("other")) == 1

    @scenario
    async def test_only_a_message_with_one_of_the_labels_wakes_the_run(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE, labels=("b", "c")))

        await bench.send("t", "a")
        assert await bench.state(claimed.run) is RunState.WAITING and await bench.claim(worker) == []
        assert not (await bench.waits(claimed.run))["w"].ready

        await bench.send("t", "c")
        second = await bench.claim_one(worker)
        assert [(row.ready, row.due) for row in second.waits] == [(True, False)]

    @scenario
    async def test_only_a_message_with_one_of_the_labels_keeps_a_run_awake(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.store.send([await bench.message("t", label) for label in ("a", "b")])
        await bench.commit(worker, wait(claimed, kind=WaitKind.MESSAGE, labels=("b", "c")))
        outcome = await bench.store.commit(worker, [park(claimed)])
        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))

        await bench.commit(worker, close(claimed, "w", take=2))
        await bench.commit(worker, wait(claimed, "v", kind=WaitKind.MESSAGE, labels=("b", "c")), park(claimed))

        assert await bench.state(claimed.run) is RunState.WAITING

    @scenario
    async def test_a_message_to_another_thread_wakes_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE))
        await bench.start("other", agent="other")

        await bench.send("other")

        assert await bench.state(claimed.run) is RunState.WAITING and await bench.claim(worker) == []

    # -- sending from inside ---------------------------------------------------------------------------------

    @scenario
    async def test_a_message_from_a_step_arrives_with_its_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.start("other")
        large = blob(b"large" * 10_000)
        message = await bench.message("other", sender=f"r{claimed.run}", blobs=(large,))

        await bench.commit(worker, send(claimed, "s", message, seq=3))

        (found,) = await bench.mailbox("other")
        assert (found.id, found.seq, found.sender, found.payload) == (message.id, 1, f"r{claimed.run}", b"hello")
        thread = (await bench.run(other)).thread
        assert await bench.store.blobs(thread, [large.digest]) == {large.digest: large.data}
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {}
        assert await bench.steps(claimed.run) == {"s": b"sent"}

    @scenario
    async def test_messages_of_one_batch_arrive_in_its_order(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("other")
        messages = [await bench.message(name) for name in ("other", "t", "other", "other")]

        await bench.commit(worker, *(send(claimed, f"s{9 - n}", each, seq=n) for n, each in enumerate(messages, 1)))

        assert [row.id for row in await bench.mailbox("other")] == [messages[n].id for n in (0, 2, 3)]
        assert [row.id for row in await bench.mailbox("t")] == [messages[1].id]

    @scenario
    async def test_a_message_from_a_step_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("other", agent="other")
        batch = [send(claimed, "s", await bench.message("other"))]
        await bench.commit(worker, *batch)
        await bench.commit(worker, *batch)
        assert [row.seq for row in await bench.mailbox("other")] == [1]

        receiver = await bench.claim_one(worker, agents=("other",))
        await bench.commit(worker, close(receiver, "m", take=1))
        await bench.commit(worker, *batch)
        await bench.commit(worker, requeue(claimed))
        await bench.claim_one(worker)
        await bench.commit(worker, *batch)

        assert await bench.mailbox("other") == []

    @scenario
    async def test_a_message_that_a_later_claim_sends_under_its_old_number_has_arrived(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        message = await bench.message("t")
        await bench.store.send([message])

        await bench.commit(worker, send(claimed, "s", message))

        assert len(await bench.mailbox("t")) == 1 and set(await bench.steps(claimed.run)) == {"s"}

    @scenario
    async def test_a_message_that_cannot_arrive_bounces_alone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("full")
        with self.mailbox_max(2):
            for _ in range(2):
                await bench.send("full")
            batch: list[Change] = [
                step(claimed, "a"),
                send(claimed, "nobody", await bench.message("nobody"), seq=2),
                send(claimed, "full", await bench.message("full"), seq=3),
                send(claimed, "t", await bench.message("t"), seq=4),
            ]

            for _ in range(2):
                outcome = await bench.store.commit(worker, batch)
                assert outcome == CommitOutcome(
                    bounced={
                        (claimed.run, 1, "nobody"): Bounce.NO_THREAD,
                        (claimed.run, 1, "full"): Bounce.FULL,
                    }
                )

        assert set(await bench.steps(claimed.run)) == {"a", "t"}
        assert [len(await bench.mailbox(name)) for name in ("full", "t")] == [2, 1]
        assert await bench.store.get_thread("nobody") is None

    # -- the bound -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_full_mailbox_takes_no_more(self, bench: Bench) -> None:
        await bench.start("t")
        await bench.start("other")
        thread = (await bench.thread("t")).id
        group = [await bench.message(name) for name in ("t", "t", "nobody", "t", "other")]
        with self.mailbox_max(2):
            outcomes = await bench.store.send(group)

            assert outcomes == [
                Sent(thread, 1),
                Sent(thread, 2),
                NotSent(Bounce.NO_THREAD),
                NotSent(Bounce.FULL),
                Sent((await bench.thread("other")).id, 1),
            ]
            assert await bench.store.send([group[0], group[3]]) == [Sent(thread, 1), NotSent(Bounce.FULL)]

    @scenario
    async def test_a_receipt_makes_room(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        with self.mailbox_max(1):
            await bench.send("t")
            refused = await bench.message("t")
            assert await bench.store.send([refused]) == [NotSent(Bounce.FULL)]

            await bench.commit(worker, close(claimed, "m", take=1))

            assert await bench.store.send([refused]) == [Sent(claimed.thread, 2)]
            assert await bench.store.send([await bench.message("t")]) == [NotSent(Bounce.FULL)]

    @scenario
    async def test_a_batch_that_fills_a_mailbox_is_cut_at_the_limit(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("other")
        sends = [send(claimed, f"s{n}", await bench.message("other"), seq=n) for n in range(4)]
        with self.mailbox_max(2):
            outcome = await bench.store.commit(worker, sends)

        assert outcome == CommitOutcome(bounced={(claimed.run, 1, f"s{n}"): Bounce.FULL for n in (2, 3)})
        assert set(await bench.steps(claimed.run)) == {"s0", "s1"}

    # -- known by its number ---------------------------------------------------------------------------------

    @scenario
    async def test_a_message_sent_again_has_arrived(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        message = await bench.message("t")
        sent = Sent(claimed.thread, 1)

        assert await bench.store.send([message, message]) == [sent, sent]
        assert await bench.store.send([message]) == [sent] and len(await bench.mailbox("t")) == 1

        await bench.commit(worker, close(claimed, "m", take=1))
        assert await bench.store.send([message]) == [sent]
        await bench.advance_s(MESSAGE_MEMORY_US // 1_000_000 - 60)
        assert await bench.store.send([message]) == [sent]
        assert await bench.mailbox("t") == []

    # -- dead letters ----------------------------------------------------------------------------------------

    @scenario
    async def test_a_message_that_nobody_can_receive_is_a_dead_letter(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = [await bench.message("t", payload=data) for data in (b"1", b"2")]
        await bench.store.send([first, second])

        await bench.commit(worker, bury(claimed, 1, "🦉 is no known type"))
        await bench.commit(worker, bury(claimed, 1, "again"), bury(claimed, 9, "never there"))

        assert [row.id for row in await bench.mailbox("t")] == [second.id]
        (letter,) = await bench.store.dead_letters(claimed.thread)
        assert (letter.id, letter.thread, letter.payload) == (first.id, claimed.thread, b"1")
        assert (letter.label, letter.dead) == ("note", "🦉 is no known type")
        assert await bench.store.send([first]) == [Sent(claimed.thread, 1)] and len(await bench.mailbox("t")) == 1

    @scenario
    async def test_a_dead_letter_is_received_by_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        seq = await bench.send("t")
        await bench.commit(worker, bury(claimed, seq))

        outcome = await bench.store.commit(worker, [close(claimed, "m", take=seq)])
        assert outcome == CommitOutcome(bounced={(claimed.run, 1, "m"): Bounce.GONE})
        await bench.commit(worker, wait(claimed, "m", WaitKind.MESSAGE), park(claimed))

        assert await bench.state(claimed.run) is RunState.WAITING

    @scenario
    async def test_dead_letters_are_listed_by_thread_or_over_all_in_pages(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        letters: list[int] = []
        for each in await bench.claim(worker):
            messages = [await bench.message(each.thread_id) for _ in range(2)]
            await bench.store.send(messages)
            await bench.commit(worker, bury(each, 1), bury(each, 2))
            letters += [message.id for message in messages]
        thread = (await bench.thread("thread-1")).id

        async def page(of: int | None, **where: int) -> list[int]:
            return [row.id for row in await bench.store.dead_letters(of, **where)]

        assert await page(None) == letters and await page(thread) == letters[2:]
        assert await page(None, limit=2) == letters[:2] and await page(None, limit=9, after=letters[1]) == letters[2:]
        assert await page(thread, limit=1, after=letters[2]) == letters[3:]
        assert await page(None, limit=0) == [] == await page(10**15)

    @scenario
    async def test_a_dead_letter_comes_back_at_the_end_of_its_mailbox(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await bench.message("t", "a", payload=b"1"), await bench.message("t")
        await bench.store.send([first, second])
        await bench.commit(worker, bury(claimed, 1))
        with self.mailbox_max(1):
            revived = await bench.store.revive(first.id)

        mailbox = await bench.mailbox("t")
        assert revived == mailbox[1] and [row.id for row in mailbox] == [second.id, first.id]
        assert (revived.seq, revived.label, revived.payload, revived.dead) == (3, "a", b"1", None)
        assert await bench.store.dead_letters() == []
        await bench.commit(worker, close(claimed, "m", take=3))
        assert [row.id for row in await bench.mailbox("t")] == [second.id]

    @scenario
    async def test_what_is_no_dead_letter_does_not_come_back(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        message, received = await bench.message("t"), await bench.message("t")
        await bench.store.send([message, received])
        await bench.commit(worker, close(claimed, "m", take=2))

        assert [await bench.store.revive(each) for each in (message.id, received.id, 10**15)] == [None] * 3
        await bench.commit(worker, bury(claimed, 1))
        assert await bench.store.revive(message.id) is not None
        assert await bench.store.revive(message.id) is None and len(await bench.mailbox("t")) == 1

    @scenario
    async def test_dead_letters_take_no_room(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        with self.mailbox_max(1):
            for seq in (1, 2, 3):
                assert await bench.send("t") == seq
                await bench.commit(worker, bury(claimed, seq))

            await bench.send("t")
            assert await bench.store.send([await bench.message("t")]) == [NotSent(Bounce.FULL)]

    @scenario
    async def test_a_mailbox_over_its_limit_has_no_room_until_it_is_below(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        letter = await bench.message("t")
        with self.mailbox_max(1):
            await bench.store.send([letter])
            await bench.commit(worker, bury(claimed, 1))
            await bench.send("t")
            await bench.store.revive(letter.id)
            await bench.commit(worker, wait(claimed, "r", WaitKind.ROOM, target=claimed.thread))

            await bench.commit(worker, close(claimed, "m2", take=2))
            assert not (await bench.waits(claimed.run))["r"].ready
            await bench.commit(worker, close(claimed, "m3", take=3, record={"seq": 2}))
            assert (await bench.waits(claimed.run))["r"].ready
