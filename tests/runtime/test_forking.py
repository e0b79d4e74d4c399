"""Forks: what a new thread takes from a checkpoint of another, which stays as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Again, App, Conflict, NotFound, NotSerializable, UnknownAgent, UsageError, step
from perdure.client.forking import UNSET
from perdure.core import snapshot
from perdure.core.codec import encode
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import Claimed, RunState, run_id
from perdure.core.snapshot import freeze, spill
from perdure.testing.conformance.harness import again, cancelled, end
from perdure.testing.conformance.harness import step as recorded
from tests.runtime.desk import Cart, Desk, at_a_desk
from tests.runtime.world import fresh_app, working

LARGE = "x" * (INLINE_BYTES_MAX + 1)


async def claim_of(desk: Desk, run: str) -> Claimed:
    """What a worker would get of this run."""
    claims = await desk.bench.claim(await desk.bench.worker(), agents=("agent", "stateless"))
    (found,) = [claimed for claimed in claims if run_id(claimed.run) == run]
    return found


async def arguments_of(desk: Desk, claimed: Claimed) -> Any:
    """Its arguments."""
    stored = snapshot.spilled(claimed.arguments)
    blobs = {} if stored is None else await desk.bench.store.blobs(claimed.thread, [stored])
    return desk.app.agents[claimed.agent].signature.decode(snapshot.unspill(claimed.arguments, blobs))


async def state_of(desk: Desk, claimed: Claimed) -> Any:
    """The items of its cart."""
    if claimed.state is None:
        return None
    have: dict[bytes, bytes] = {}
    while wanted := snapshot.missing(claimed.state, have):
        have |= await desk.bench.store.blobs(claimed.thread, sorted(wanted))
    return snapshot.thaw(claimed.state, have)["items"]


def frozen(*items: str) -> dict[str, Any]:
    """A cart, as a boundary files it."""
    made = freeze({"items": list(items)})
    return {"state": made.root, "blobs": made.blobs}


async def shopped(desk: Desk) -> Claimed:
    """A run with two super-steps, the second of which has recorded four steps; still running."""
    worker, claimed = await desk.bench.begin(payload=encode([["first"], {}]), tenant="acme", tags=("a",), priority=3)
    large, blobs = spill(encode(LARGE))
    await desk.bench.commit(
        worker,
        recorded(claimed, "one", encode(1), seq=1),
        again(claimed, 2, encode([["second"], {}]), **frozen("tea", LARGE)),
        recorded(claimed, "a", encode("A"), super_step=2, seq=1),
        recorded(claimed, "b", large, super_step=2, seq=2, blobs=blobs),
        recorded(claimed, "c", encode("C"), super_step=2, seq=3),
        recorded(claimed, "d", encode("D"), super_step=2, seq=4),
    )
    return claimed


async def everything(desk: Desk, run: int) -> Any:
    """All that the store has of a run."""
    return await desk.bench.run(run), await desk.bench.log(run)


@at_a_desk
async def test_a_fork_goes_on_from_a_key_with_the_records_before_it(desk: Desk) -> None:
    source = await shopped(desk)
    before = await everything(desk, source.run)

    handle = await desk.app.thread("thread").fork(super_step=2, key="c")

    assert handle.thread_id == handle.run_id != run_id(source.run)
    claimed = await claim_of(desk, handle.run_id)
    assert [(row.key, row.seq, row.run) for row in claimed.records] == [("a", 1, claimed.run), ("b", 2, claimed.run)]
    assert claimed.super_step == 2 and await arguments_of(desk, claimed) == (("second",), {})
    assert await state_of(desk, claimed) == ["tea", LARGE]
    assert snapshot.spilled(claimed.records[1].payload) in await desk.bench.store.blobs(
        claimed.thread, [snapshot.spilled(claimed.records[1].payload) or b""]
    )
    info = await handle.status()
    assert (info.tenant, info.tags, info.priority, info.agent) == ("acme", ("a",), 3, "agent")
    assert await everything(desk, source.run) == before


@at_a_desk
async def test_without_a_key_a_super_step_begins_afresh(desk: Desk) -> None:
    await shopped(desk)
    claimed = await claim_of(desk, (await desk.app.thread("thread").fork()).run_id)
    assert (claimed.super_step, claimed.records) == (2, ())
    assert await state_of(desk, claimed) == ["tea", LARGE]


@at_a_desk
async def test_a_fork_from_the_start_has_the_state_that_the_thread_had_then(desk: Desk) -> None:
    worker, first = await desk.bench.begin()
    await desk.bench.commit(worker, end(first, encode([]), **frozen("tea")))
    worker, second = await desk.bench.begin()
    await desk.bench.commit(worker, end(second, encode([]), **frozen("tea", "milk")))
    thread = desk.app.thread("thread")
    whole = await thread.fork(super_step=1, run_id=run_id(second.run))
    assert await state_of(desk, await claim_of(desk, whole.run_id)) == ["tea"]
    empty = await thread.fork(super_step=1, run_id=run_id(first.run))
    assert await state_of(desk, await claim_of(desk, empty.run_id)) is None
    assert await whole._app.thread(whole.thread_id).state() == Cart(["tea"])


@at_a_desk
async def test_a_state_that_was_rolled_back_is_not_forked_from(desk: Desk) -> None:
    worker, first = await desk.bench.begin()
    await desk.bench.commit(worker, end(first, encode([]), **frozen("tea")))
    worker, second = await desk.bench.begin()
    await desk.bench.commit(worker, again(second, 2, encode([[], {}]), **frozen("tea", "wrong")))
    third = await desk.app.start("agent", thread_id="thread", if_busy="rollback")
    await desk.bench.store.commit(worker, [cancelled(second, super_step=3)])
    fork = await desk.app.thread("thread").fork(run_id=third.run_id)
    assert await state_of(desk, await claim_of(desk, fork.run_id)) == ["tea"]


@at_a_desk
async def test_a_fork_may_have_another_state(desk: Desk) -> None:
    await shopped(desk)
    fork = await desk.app.thread("thread").fork(key="b", state=Cart(["coffee", LARGE]), thread_id="what if")
    assert fork.thread_id == "what if"
    claimed = await claim_of(desk, fork.run_id)
    assert await state_of(desk, claimed) == ["coffee", LARGE]
    assert [row.key for row in claimed.records] == ["a"]
    assert await desk.app.thread("what if").state() == Cart(["coffee", LARGE])
    assert await desk.app.thread("thread").state() == Cart(["tea", LARGE])


@at_a_desk
async def test_a_fork_may_have_other_arguments(desk: Desk) -> None:
    await shopped(desk)
    claimed = await claim_of(desk, (await desk.app.thread("thread").fork(args=["other", LARGE])).run_id)
    assert await arguments_of(desk, claimed) == (("other", LARGE), {})
    assert await state_of(desk, claimed) == ["tea", LARGE]


@at_a_desk
async def test_what_does_not_fit_the_agent_is_refused(desk: Desk) -> None:
    await shopped(desk)
    await desk.bench.start("plain", agent="stateless", payload=encode([[], {}]))
    thread, plain = desk.app.thread("thread"), desk.app.thread("plain")
    with pytest.raises(NotSerializable):
        await thread.fork(state={"items": 7})
    with pytest.raises(NotSerializable):
        await thread.fork(args=[object()])
    with pytest.raises(UsageError, match="no state to change"):
        await plain.fork(state={})
    with pytest.raises(UsageError):
        await plain.fork(args=[1, 2, 3])
    with pytest.raises(UsageError, match="list of arguments"):
        await plain.fork(args="text")
    assert len(await desk.app.runs()) == 2


@at_a_desk
async def test_an_agent_must_be_there_only_where_something_is_changed(desk: Desk) -> None:
    await shopped(desk)
    elsewhere = App("elsewhere", store=desk.app._store)
    async with elsewhere:
        assert (await elsewhere.thread("thread").fork(key="c")).run_id
        with pytest.raises(UnknownAgent):
            await elsewhere.thread("thread").fork(state={"items": []})


@at_a_desk
async def test_what_is_not_there_is_answered_with_what_there_is(desk: Desk) -> None:
    source = await shopped(desk)
    other = await desk.bench.start("other")
    thread = desk.app.thread("thread")
    with pytest.raises(NotFound, match="no super-step 7; it has 1, 2") as missing:
        await thread.fork(super_step=7)
    assert missing.value.super_steps == (1, 2)
    with pytest.raises(NotFound, match="no record under 'z'; it has a, b, c, d") as missing:
        await thread.fork(key="z")
    assert missing.value.keys == ("a", "b", "c", "d")
    with pytest.raises(NotFound, match="belongs to thread 'other'"):
        await thread.fork(run_id=run_id(other))
    with pytest.raises(NotFound, match="runs list"):
        await thread.fork(run_id="r99999")
    with pytest.raises(NotFound, match="threads list"):
        await desk.app.thread("nowhere").fork()
    with pytest.raises(Conflict, match="'other' exists already"):
        await thread.fork(thread_id="other")
    for wrong in (0, -1, True, "1"):
        with pytest.raises(UsageError, match="numbered from 1"):
            await thread.fork(super_step=wrong)  # type: ignore[arg-type]
    assert len(await desk.app.runs()) == 2 and source.run


@at_a_desk
async def test_a_fork_can_be_forked(desk: Desk) -> None:
    await shopped(desk)
    once = await desk.app.thread("thread").fork(key="d")
    twice = await desk.app.thread(once.thread_id).fork(key="c")
    claimed = await claim_of(desk, twice.run_id)
    assert [row.key for row in claimed.records] == ["a", "b"]
    assert await state_of(desk, claimed) == ["tea", LARGE]


def test_the_newest_run_is_that_which_was_started_last_whatever_its_number() -> None:
    first, second = (App("test", store="memory://fork-newest") for _ in range(2))

    async def agent(what: str) -> str:
        return what

    for app in (first, second):
        app.agent(agent)

    async def main() -> str:
        async with first, second, second.worker(poll_s=0.05):
            await first.start("agent", "else", thread_id="other")  # its block of ids is the lower one
            old = await second.start("agent", "old", thread_id="thread")
            new = await first.start("agent", "new", thread_id="thread")
            assert new._id < old._id
            assert [await old.result(timeout=20), await new.result(timeout=20)] == ["old", "new"]
            result: str = await (await second.thread("thread").fork()).result(timeout=20)
            return result

    assert asyncio.run(main()) == "new"


def test_unset_is_not_none() -> None:
    assert UNSET is not None


# -- executed ---------------------------------------------------------------------------------------------------------


def test_steps_before_the_key_are_reused_and_those_from_it_on_run_exactly_once() -> None:
    """From every checkpoint of a run with two super-steps, steps in parallel, and children."""
    app = fresh_app()
    ran: list[str] = []

    @step
    async def work(name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.agent
    async def child(name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.agent
    async def ten(round: int, *, state: Cart) -> Again | list[str]:
        state.items += [await work(f"{round}a"), await perdure.call(child, f"{round}b")]
        state.items += await asyncio.gather(work(f"{round}c"), work(f"{round}d"))
        state.items.append(await work(f"{round}e"))
        return Again(round + 1) if round == 1 else state.items

    async def main() -> None:
        async with working(app):
            original = await app.start(ten, 1, thread_id="thread")
            whole = await original.result(timeout=20)
            log = await original.history()
            thread = app.thread("thread")
            keys = [(row.super_step, row.key) for row in log if row.key]
            assert len(keys) == 12 and sorted(ran) == sorted(name.lower() for name in whole)
            for super_step, key in keys:
                ran.clear()
                fork = await thread.fork(super_step=super_step, key=key)
                assert await fork.result(timeout=20) == whole
                assert sorted(ran) == _names_of(keys[keys.index((super_step, key)) :])
            assert await original.history() == log
            assert (await original.status()).state is RunState.COMPLETED
            assert await thread.state() == Cart(whole)

    asyncio.run(main())


def _names_of(keys: list[tuple[int, str]]) -> list[str]:
    """What runs again where these records are missing: steps, and children whose start is (not only their result)."""
    letters = {"work": "a", "start:child": "b", "1/work": "c", "2/work": "d", "work#2": "e"}
    return sorted(f"{super_step}{letters[key]}" for super_step, key in keys if key in letters)
