"""Cancelling from outside, and what is shown of runs that wait: the caller is told the truth."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from perdure import NotFound, RunCancelled, UsageError
from perdure.core import limits
from perdure.core.codec import encode
from perdure.core.records import AgentState, RunState, WaitKind, run_id
from perdure.runtime.info import moment
from perdure.testing.conformance.harness import cancelled, end, hold, park, wait
from tests.runtime.desk import Desk, at_a_desk


@at_a_desk
async def test_a_run_that_nobody_has_begun_is_cancelled_at_once(desk: Desk) -> None:
    handle = await desk.app.start("agent")
    assert await handle.cancel(reason="not needed") is RunState.CANCELLED
    with pytest.raises(RunCancelled, match="not needed") as over:
        await handle.result(timeout=20)
    assert (over.value.run_id, over.value.reason) == (handle.run_id, "not needed")
    info = await handle.status()
    assert (info.state, info.cancel, info.waiting_for) == (RunState.CANCELLED, "not needed", None)


@at_a_desk
async def test_a_run_that_has_begun_will_end_as_cancelled_whatever_it_does(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    handle = desk.app.handle(run_id(claimed.run))
    assert await desk.app.cancel(handle.run_id, reason="enough") is RunState.CANCELLED
    info = await handle.status()
    assert (info.state, info.cancel) == (RunState.RUNNING, "enough")
    outcome = await desk.bench.store.commit(worker, [end(claimed)])
    assert outcome.cancelled == {claimed.run}
    await desk.bench.store.commit(worker, [cancelled(claimed, encode(None))])
    with pytest.raises(RunCancelled) as over:
        await handle.result(timeout=20)
    assert over.value.reason == "enough"


@at_a_desk
async def test_a_run_that_has_ended_stays_as_it_is_and_the_caller_is_told(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    await desk.bench.commit(worker, end(claimed, encode([])))
    handle = desk.app.handle(run_id(claimed.run))
    assert await handle.cancel() is RunState.COMPLETED
    assert (await handle.status()).cancel is None


@at_a_desk
async def test_the_first_reason_stays(desk: Desk) -> None:
    _, claimed = await desk.bench.begin()
    handle = desk.app.handle(run_id(claimed.run))
    assert await handle.cancel("first") is RunState.CANCELLED
    assert await handle.cancel("second") is RunState.CANCELLED
    assert (await handle.status()).cancel == "first"


@at_a_desk
async def test_a_held_run_is_cancelled_at_once(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    await desk.bench.commit(worker, hold(claimed))
    assert await desk.app.cancel(run_id(claimed.run)) is RunState.CANCELLED
    assert (await desk.app.run_info(run_id(claimed.run))).state is RunState.CANCELLED


@at_a_desk
async def test_a_cancelled_run_closes_its_questions(desk: Desk) -> None:
    asked, claimed = await desk.asked()
    await desk.app.cancel(run_id(claimed.run))
    (woken,) = await desk.bench.claim(await desk.bench.worker())
    assert woken.cancel is not None
    await desk.bench.store.commit(
        (await desk.bench.run(claimed.run)).worker or 0, [cancelled(woken, encode(None), waited=True)]
    )
    assert (await desk.app.interrupt_info(asked)).state == "withdrawn"


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda app: app.cancel("r99999"), NotFound, "runs list"),
        (lambda app: app.cancel("seven"), UsageError, "r42"),
        (lambda app: app.cancel("r1", reason=" "), UsageError, "in a few words"),
        (lambda app: app.cancel("r1", reason=7), UsageError, "in a few words"),
    ],
)
def test_nonsense_is_a_typed_error_with_its_remedy(call: Any, error: type[Exception], remedy: str) -> None:
    @at_a_desk
    async def nonsense(desk: Desk) -> None:
        with pytest.raises(error, match=remedy):
            await call(desk.app)

    nonsense()


def test_any_text_is_a_reason() -> None:
    @at_a_desk
    async def odd(desk: Desk) -> None:
        handle = await desk.app.start("agent")
        assert await handle.cancel("a\0b\ud800" + "x" * 10_000) is RunState.CANCELLED
        reason = (await handle.status()).cancel
        assert reason is not None and len(reason) <= 1_000 and "\0" not in reason

    odd()


# -- what a run waits for ---------------------------------------------------------------------------------------------


@at_a_desk
async def test_a_parked_run_says_what_it_waits_for(desk: Desk) -> None:
    other = await desk.bench.start("other", agent="stateless")
    worker, claimed = await desk.bench.begin()
    at = int(datetime(2099, 12, 1, 9, tzinfo=UTC).timestamp() * 1_000_000)
    asked = await desk.ask(worker, claimed, "a", assignee="alice")
    anyone = await desk.ask(worker, claimed, "b")
    await desk.bench.commit(
        worker,
        wait(claimed, "c", due_at=at),
        wait(claimed, "d", WaitKind.MESSAGE, labels=("Order", "str")),
        wait(claimed, "e", WaitKind.MESSAGE),
        wait(claimed, "f", WaitKind.RUN, target=other),
        park(claimed),
    )
    words = f"an answer to {asked} from alice, an answer to {anyone}, {moment(at).isoformat()} and 3 more"
    assert (await desk.app.run_info(run_id(claimed.run))).waiting_for == words
    assert [info.waiting_for for info in await desk.app.runs(state="waiting")] == [words]
    assert (await desk.app.thread("thread").info()).state is AgentState.RESPONSE


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (WaitKind.MESSAGE, {"labels": ("Order",)}, "a message (Order)"),
        (WaitKind.MESSAGE, {"labels": ("Order", "str")}, "a message (Order or str)"),
        (WaitKind.MESSAGE, {}, "a message"),
        (WaitKind.TIMER, {"due_at": 4_099_723_200_000_000}, "2099-11-30T12:00:00+00:00"),
    ],
)
def test_each_kind_of_wait_has_its_words(kind: WaitKind, fields: dict[str, Any], words: str) -> None:
    @at_a_desk
    async def waiting(desk: Desk) -> None:
        _, claimed = await desk.bench.parked("thread", wait(kind=kind, **fields))
        assert (await desk.app.run_info(run_id(claimed.run))).waiting_for == words

    waiting()


@at_a_desk
async def test_a_wait_for_a_run_or_for_room_names_it(desk: Desk) -> None:
    other = await desk.bench.start("other", agent="stateless")
    _, one = await desk.bench.parked("one", wait(kind=WaitKind.RUN, target=other))
    assert (await desk.app.run_info(run_id(one.run))).waiting_for == f"run {run_id(other)}"
    with mock.patch.object(limits, "MAILBOX_MAX", 1):
        await desk.app.send("other", 1)
        thread = await desk.bench.thread("other")
        _, two = await desk.bench.parked("two", wait(kind=WaitKind.ROOM, target=thread.id))
        words = "room in the mailbox of thread 'other'"
        assert (await desk.app.run_info(run_id(two.run))).waiting_for == words


# -- deadlines and keys -----------------------------------------------------------------------------------------------


@at_a_desk
async def test_a_deadline_counts_from_now_or_is_a_time(desk: Desk) -> None:
    soon = await desk.app.start("agent", deadline="2h")
    info = await soon.status()
    assert info.deadline_at is not None and info.deadline_at - info.created_at == timedelta(hours=2)
    then = datetime(2099, 12, 1, 9, tzinfo=UTC)
    assert (await (await desk.app.start("agent", deadline=then)).status()).deadline_at == then
    assert (await (await desk.app.start("agent")).status()).deadline_at is None
    for wrong in (datetime(2099, 12, 1, 9), -1, "soon", "2099-12-01"):
        with pytest.raises(UsageError):
            await desk.app.start("agent", deadline=wrong)


@at_a_desk
async def test_keys_of_agents_own_starts_are_theirs(desk: Desk) -> None:
    with pytest.raises(UsageError, match="must not begin with"):
        await desk.app.start("agent", key="\x01r1/1/call")
    assert await desk.app.runs() == []


def test_cancels_of_many_runs_at_once_are_each_told_the_truth() -> None:
    @at_a_desk
    async def many(desk: Desk) -> None:
        worker = await desk.bench.worker()
        runs = await desk.bench.start_many(20)
        claims = await desk.bench.claim(worker)
        endings = (desk.bench.store.commit(worker, [end(claimed, encode([]))]) for claimed in claims)
        told, _ = await asyncio.gather(
            asyncio.gather(*(desk.app.cancel(run_id(run)) for run in runs)), asyncio.gather(*endings)
        )
        for run, state in zip(runs, told, strict=True):
            row = await desk.bench.run(run)
            assert row.state is state if state is RunState.COMPLETED else row.cancel is not None

    many()
