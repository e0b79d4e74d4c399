"""Scenarios: the rows that say what a run waits for, from their opening to the record that ends them."""

from __future__ import annotations

import msgspec

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import KEY_CHARS_MAX
from perdure.core.records import Claimed, InterruptState, RunState, Wait, WaitKind
from perdure.core.requests import InterruptFilter, NewMessage
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    blob,
    bury,
    close,
    end,
    fail,
    hold,
    park,
    requeue,
    scenario,
    send,
    step,
    wait,
)

HOUR_US = 3_600_000_000


class Waiting(Harness):
    """What `OpenWait` and `CloseWait` promise."""

    @scenario
    async def test_a_wait_is_there_as_it_was_opened(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        before = await bench.store.now_us()

        await bench.commit(worker, wait(claimed, "🦉/w#2", WaitKind.MESSAGE, delay_us=HOUR_US, labels=("a", "🦊", "")))

        (row,) = await bench.store.waits([claimed.run])
        assert before <= row.opened_at <= await bench.store.now_us()
        assert row == Wait(
            run=claimed.run,
            super_step=1,
            key="🦉/w#2",
            kind=WaitKind.MESSAGE,
            opened_at=row.opened_at,
            due_at=row.opened_at + HOUR_US,
            target=None,
            labels=("a", "🦊", ""),
            ready=False,
            due=False,
        )

    @scenario
    async def test_waits_and_labels_of_any_text_round_trip(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        keys = ("🦉" * 200, "'; --", '"x"', "{1,2}", "null", " ", "a" * KEY_CHARS_MAX)

        await bench.commit(worker, *(wait(claimed, key, WaitKind.MESSAGE, labels=(key, "b")) for key in keys))

        assert {key: row.labels for key, row in (await bench.waits(claimed.run)).items()} == {
            key: (key, "b") for key in keys
        }
        for key in keys:
            await bench.send("t", key[:128])
        ready = {key for key, row in (await bench.waits(claimed.run)).items() if row.ready}
        assert ready == {key for key in keys if len(key) <= 128}

    @scenario
    async def test_the_earlier_of_the_two_times_of_a_wait_counts(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        noon = await bench.store.now_us() + 2 * HOUR_US

        await bench.commit(
            worker,
            wait(claimed, "at", due_at=noon),
            wait(claimed, "at first", due_at=noon, delay_us=3 * HOUR_US),
            wait(claimed, "delay first", due_at=noon, delay_us=HOUR_US),
            wait(claimed, "never", WaitKind.MESSAGE),
        )

        waits = await bench.waits(claimed.run)
        assert (waits["at"].due_at, waits["at first"].due_at, waits["never"].due_at) == (noon, noon, None)
        assert waits["delay first"].due_at == waits["delay first"].opened_at + HOUR_US

    @scenario
    async def test_a_wait_opened_again_keeps_its_time(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, delay_s=60))
        await bench.advance_s(30)
        before = await bench.store.waits([claimed.run])

        await bench.commit(worker, wait(claimed, delay_s=60))
        await bench.die(worker)
        worker = await bench.worker()
        second = await bench.claim_one(worker)
        await bench.commit(worker, wait(second, delay_s=60), wait(second, delay_us=0), park(second))

        assert await bench.store.waits([claimed.run]) == before
        await bench.advance_s(31)
        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_waits_are_listed_by_run_and_key(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        one, two, three = await bench.claim(worker)

        await bench.commit(
            worker,
            *(wait(two, key, delay_s=60) for key in ("b", "a", "c")),
            *(wait(one, key, delay_s=60) for key in ("z", "y")),
            wait(three, "x", delay_s=60),
        )

        found = await bench.store.waits([two.run, 10**15, one.run, two.run])
        ids = [(one.run, "y"), (one.run, "z"), (two.run, "a"), (two.run, "b"), (two.run, "c")]
        assert [(row.run, row.key) for row in found] == ids
        assert await bench.store.waits([]) == [] == await bench.store.waits([10**15])

    @scenario
    async def test_waits_can_be_listed_that_are_ready(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        one, two = await bench.claim(worker)
        await bench.commit(
            worker,
            *(wait(one, key, delay_s=delay_s) for key, delay_s in (("c", 0), ("b", 60), ("a", 0))),
            wait(two, "never"),
            wait(two, "message", WaitKind.MESSAGE),
        )

        found = await bench.store.waits([two.run, one.run], only_ready=True)
        assert [(row.run, row.key, row.ready) for row in found] == [(one.run, "a", True), (one.run, "c", True)]
        assert await bench.store.waits([two.run], only_ready=True) == []

    @scenario
    async def test_a_wait_is_ready_from_its_time_on(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        message = wait(claimed, "m", WaitKind.MESSAGE, delay_s=60)
        await bench.commit(worker, wait(claimed, "now", delay_us=0), wait(claimed, "later", delay_s=60), message)

        early = await bench.waits(claimed.run)
        await bench.advance_s(61)
        late = await bench.waits(claimed.run)

        over = {key: (row.ready, row.due) for key, row in early.items()}
        assert over == {"now": (True, True), "later": (False, False), "m": (False, False)}
        assert {(row.ready, row.due) for row in late.values()} == {(True, True)}

    # -- closing ---------------------------------------------------------------------------------------------

    @scenario
    async def test_a_wait_ends_with_the_record_of_its_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, "w", delay_us=0), wait(claimed, "other", delay_s=60))
        data = blob(b"large" * 10_000)

        await bench.commit(worker, close(claimed, "w", b"came", record={"seq": 4, "digest": -9, "blobs": (data,)}))

        assert set(await bench.waits(claimed.run)) == {"other"}
        (record,) = [row for row in await bench.log(claimed.run) if row.key]
        assert (record.key, record.payload, record.seq, record.digest) == ("w", b"came", 4, -9)
        assert (record.fence, record.worker) == (claimed.fence, worker)
        assert await bench.store.blobs(claimed.thread, [data.digest]) == {data.digest: data.data}

    @scenario
    async def test_a_wait_may_end_without_a_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, "w", delay_s=60), wait(claimed, "other", delay_s=60))

        await bench.commit(worker, close(claimed, "w", None))

        assert set(await bench.waits(claimed.run)) == {"other"} and await bench.steps(claimed.run) == {}

    @scenario
    async def test_a_record_is_filed_also_where_nobody_waited(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, close(claimed, "w", b"came"), close(claimed, "unknown", None))

        assert await bench.steps(claimed.run) == {"w": b"came"}

    @scenario
    async def test_any_wait_may_end_because_its_time_has_come(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        kinds = {"t": WaitKind.TIMER, "m": WaitKind.MESSAGE}
        await bench.commit(worker, *(wait(claimed, key, kind, delay_us=0) for key, kind in kinds.items()))
        await bench.send("t")

        ended = [close(claimed, key, expired=True, record={"seq": n}) for n, key in enumerate(kinds)]
        await bench.commit(worker, *ended, close(claimed, "never opened", expired=True, record={"seq": 2}))

        assert set(await bench.steps(claimed.run)) == {"t", "m", "never opened"}
        assert await bench.waits(claimed.run) == {} and len(await bench.mailbox("t")) == 1

    @scenario
    async def test_a_wait_opened_and_ended_in_one_batch_is_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        batch: list[Change] = [
            wait(claimed, "a", delay_us=0),
            close(claimed, "a"),
            wait(claimed, "b", delay_s=60),
            close(claimed, "b", None),
            wait(claimed, "c", delay_s=60),
        ]

        await bench.commit(worker, *batch)
        await bench.commit(worker, *batch)

        assert set(await bench.waits(claimed.run)) == {"c"} and set(await bench.steps(claimed.run)) == {"a"}

    @scenario
    async def test_a_step_on_record_is_not_waited_for(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        opening = wait(claimed, "w", WaitKind.ANSWER, interrupt=await bench.question(), delay_us=0)
        await bench.commit(worker, opening)
        await bench.commit(worker, close(claimed, "w", expired=True), step(claimed, "s", seq=2))

        await bench.commit(worker, opening, wait(claimed, "s", delay_s=60))

        assert await bench.waits(claimed.run) == {}
        assert await bench.inbox(state=InterruptState.OPEN) == []

    @scenario
    async def test_the_first_of_two_records_that_end_a_wait_is_the_record(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, delay_us=0))

        await bench.commit(worker, close(claimed, payload=b"first"), close(claimed, payload=b"second"))
        await bench.commit(worker, close(claimed, payload=b"third"))

        assert await bench.steps(claimed.run) == {"w": b"first"} and await bench.waits(claimed.run) == {}

    @scenario
    async def test_a_wait_is_not_ended_by_a_record_that_is_refused(self, bench: Bench) -> None:
        dead, first = await bench.begin("t")
        await bench.commit(dead, step(first, "a", b"first"), wait(first, "w", delay_s=60))
        await bench.die(dead)
        worker = await bench.worker()
        second = await bench.claim_one(worker)
        seq = await bench.send("t")

        for refused in (step(second, "a", b"second"), close(second, "a", b"second")):
            taken, buried = close(second, "m", take=seq), bury(second, seq)
            batch: list[Change] = [wait(second, "x"), close(second, "w"), taken, buried, refused, park(second)]
            outcome = await bench.store.commit(worker, batch)
            assert list(outcome.refused) == [second.run] and not outcome.lost and not outcome.awake

        assert set(await bench.waits(second.run)) == {"w"} and len(await bench.mailbox("t")) == 1
        assert await bench.steps(second.run) == {"a": b"first"}
        assert await bench.state(second.run) is RunState.RUNNING

    # -- the end of a super-step -----------------------------------------------------------------------------

    @scenario
    async def test_waits_end_with_their_super_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, "w", delay_s=60), wait(claimed, "v", delay_s=60))

        await bench.commit(worker, again(claimed, 2, waited=True))

        assert await bench.waits(claimed.run) == {}

    @scenario
    async def test_waits_of_the_next_super_step_stay_when_those_before_it_end(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        batch: list[Change] = [
            wait(claimed, "w", delay_s=30),
            again(claimed, 2, waited=True),
            wait(claimed, "w", delay_s=60, super_step=2),
        ]

        await bench.commit(worker, *batch)
        await bench.commit(worker, *batch)
        await bench.commit(worker, park(claimed))

        (row,) = await bench.store.waits([claimed.run])
        assert (row.super_step, row.key, row.due_at) == (2, "w", row.opened_at + 60_000_000)
        assert (await bench.run(claimed.run)).ready_at == row.due_at

    @scenario
    async def test_waits_end_with_their_run_however_it_ends(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        runs = await bench.claim(worker)
        await bench.commit(worker, *(wait(each, delay_s=60) for each in runs))
        outcomes = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)

        await bench.commit(worker, *(end(runs[n], outcome=each, waited=True) for n, each in enumerate(outcomes)))

        assert [row.run for row in await bench.store.waits([each.run for each in runs])] == [runs[3].run]

    @scenario
    async def test_waits_outlast_a_requeue_and_a_hold(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, delay_s=60))
        before = await bench.store.waits([claimed.run])

        await bench.commit(worker, requeue(claimed))
        second = await bench.claim_one(worker)
        await bench.commit(worker, hold(second))
        await bench.store.release(claimed.run)

        assert list((await bench.claim_one(worker)).waits) == before == await bench.store.waits([claimed.run])

    @scenario
    async def test_a_run_that_is_tried_again_waits_for_nothing_until_it_asks(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, delay_s=60), fail(claimed, waited=True))

        await bench.store.retry(claimed.run, [])

        assert (await bench.claim_one(worker)).waits == ()

    # -- repeated, and who may -------------------------------------------------------------------------------

    @scenario
    async def test_every_change_of_a_wait_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        taken, dead = await bench.send("t"), await bench.send("t")
        question = await bench.question()
        batches: list[list[Change]] = [
            [
                wait(claimed, "w", delay_s=60),
                wait(claimed, "q", WaitKind.ANSWER, interrupt=question, blobs=(blob(b"?"),)),
                wait(claimed, "m", WaitKind.MESSAGE),
            ],
            [close(claimed, "w", record={"seq": 1}), close(claimed, "q", None)],
            [close(claimed, "m", take=taken, record={"seq": 2}), bury(claimed, dead)],
            [send(claimed, "s", await bench.message("t"), seq=3)],
            [wait(claimed, "x", delay_s=60), again(claimed, 2, waited=True)],
            [wait(claimed, "y", delay_s=60, super_step=2), end(claimed, super_step=3, waited=True)],
        ]
        for batch in batches:
            await bench.commit(worker, *batch)
            await bench.advance_s(1)
            before = await _picture(bench, claimed)

            await bench.commit(worker, *batch)

            assert await _picture(bench, claimed) == before, batch

    @scenario
    async def test_what_ended_a_wait_may_be_sent_again_after_a_new_claim(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        taken = await bench.send("t")
        await bench.commit(worker, wait(first, "w", delay_s=60))
        on_record: list[Change] = [
            close(first, "w", record={"seq": 1}),
            close(first, "m", take=taken, record={"seq": 2}),
            send(first, "s", await bench.message("t"), seq=3),
        ]
        await bench.commit(worker, *on_record)
        await bench.commit(worker, requeue(first))
        second = await bench.claim_one(worker)
        before = await _picture(bench, first)

        assert await bench.store.commit(worker, on_record) == CommitOutcome()
        for change in _every_kind(await bench.message("t"), first, taken):
            outcome = await bench.store.commit(worker, [*on_record, change])
            assert outcome == CommitOutcome(lost=frozenset({first.run})), change

        assert await _picture(bench, first) == before
        await bench.commit(worker, step(second, "new", seq=4))

    @scenario
    async def test_who_may_not_write_can_open_close_park_send_and_bury_nothing(self, bench: Bench) -> None:
        dead, owner = await bench.worker(), await bench.worker()
        await bench.start("t")
        old = await bench.claim_one(dead)
        await bench.die(dead)
        claimed = await bench.claim_one(owner)
        await bench.commit(owner, wait(claimed, "open", delay_s=60))
        seq = await bench.send("t")
        before = await _picture(bench, claimed)
        unborn = msgspec.structs.replace(claimed, fence=claimed.fence + 1)
        thief = await bench.worker()

        for worker, guess in ((owner, old), (owner, unborn), (thief, claimed), (dead, old), (dead, claimed)):
            for change in _every_kind(await bench.message("t"), guess, seq):
                outcome = await bench.store.commit(worker, [change])
                lost = CommitOutcome(alive=False) if worker == dead else CommitOutcome(lost=frozenset({claimed.run}))
                assert outcome == lost, change

        assert await _picture(bench, claimed) == before
        await bench.commit(owner, close(claimed, "open"))


def _every_kind(message: NewMessage, claimed: Claimed, seq: int) -> list[Change]:
    """Changes that would show if they were written: `open` is a wait that there is, `seq` a message."""
    return [
        wait(claimed, "new", delay_s=60),
        close(claimed, "open", None),
        close(claimed, "new"),
        close(claimed, "new", take=seq),
        send(claimed, "new", message),
        bury(claimed, seq),
        park(claimed),
    ]


async def _picture(bench: Bench, claimed: Claimed) -> object:
    return (
        await bench.run(claimed.run),
        await bench.store.get_thread(claimed.thread_id),
        await bench.log(claimed.run),
        await bench.store.waits([claimed.run]),
        await bench.store.interrupts(InterruptFilter(state=None, run=claimed.run)),
        await bench.mailbox(claimed.thread_id),
        await bench.store.dead_letters(claimed.thread),
    )
