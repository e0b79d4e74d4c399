"""Programs from seeds: the same every time, and deep enough to meet what worries a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.core import limits
from perdure.store.protocol import Store
from perdure.testing.differential import APP, STORE, MemoryGround, author, operations
from perdure.testing.differential.acting import Begin, Send, Work
from perdure.testing.differential.performing import short_queues

SEEDS = range(70)


def test_a_seed_writes_the_same_program_every_time() -> None:
    for level in (STORE, APP):
        first, again, other = (asyncio.run(level.write(seed, 40)) for seed in (7, 7, 8))

        assert first == again != other


def test_a_program_says_everything_that_is_needed_to_tell_it_again() -> None:
    async def main() -> None:
        program = await STORE.write(3, STORE.length)

        assert await STORE.tell(program, MemoryGround()) == await STORE.tell(program, MemoryGround())

    asyncio.run(main())


def test_programs_use_every_verb_that_has_an_answer() -> None:
    life = {"open", "close", "abandon", "clone", "migrate", "now_us", "reserve_ids", "listen", "diagnose", "url"}
    looked_at = {"blobs", "workers", "get_thread", "silent_workers"}
    verbs = {name for name in vars(Store) if not name.startswith("_")}

    told = {each.verb for seed in SEEDS[:50] for each in written(seed) if isinstance(each, operations.Call)}

    assert told == verbs - life - looked_at


def test_programs_meet_what_worries_a_store() -> None:
    met: Counter[str] = Counter()

    async def main() -> None:
        for seed in SEEDS:
            program = await STORE.write(seed, STORE.length)
            for operation, answer in zip(program, await STORE.tell(program, MemoryGround()), strict=True):
                met.update(worries(operation, answer))

    asyncio.run(main())
    few = {name: met[name] for name in WORRIES if met[name] < 2}
    assert few == {}


def test_an_apps_programs_use_every_agent_and_every_act() -> None:
    program = [each for seed in SEEDS for each in asyncio.run(APP.write(seed, APP.length))]

    agents = {each.agent for each in program if isinstance(each, Begin)}
    assert agents == {"line", "fan", "count", "large", "shaky", "careful", "fickle", "patient", "nobody"}
    assert {each.verb for each in program if isinstance(each, Send)} == {"retry", "release"}
    assert {each.present for each in program if isinstance(each, Work)} == {True, False}


def written(seed: int) -> tuple[operations.Operation, ...]:
    return asyncio.run(author.write(seed, STORE.length))


WORRIES = (
    "dead", "lost", "refused", "written", "Started again", "KeyTaken", "ThreadHeld", "OtherAgent", "records", "tries",
    "state", "suspect", "poison", "taken over", "given back", "retry", "release", "silent", "completed", "failed",
    "cancelled",
)  # fmt: skip


def worries(operation: Any, answer: Any) -> Iterator[str]:
    """What this answer shows to have been met."""
    match operation:
        case operations.Silent() if answer:
            yield "silent"
        case operations.Look():
            yield from (run["state"] for run in answer["runs"])
        case operations.Call(verb="commit"):
            yield "dead" if not answer["alive"] else "lost" if answer["lost"] else "written"
            yield "refused" if answer["refused"] else "taken"
        case operations.Call(verb="start"):
            yield from (each["is"] for each in answer if each["is"] != "Started")
            yield from ("Started again" for each in answer if each.get("created") is False)
        case operations.Call(verb="claim"):
            for each in answer:
                yield from (name for name in ("records", "state") if each[name])
                yield from ("tries" for _ in each["attempts"][:1])
                yield "suspect" if each["strikes"] >= 3 else "sound"
        case operations.Call(verb="take_over"):
            yield from ("poison" if each["held"] else "taken over" for each in answer)
        case operations.Call(verb="give_back" | "retire") if answer:
            yield "given back"
        case operations.Call(verb="retry" | "release") if answer and answer["state"] == "queued":
            yield operation.verb


def test_a_limit_that_is_lowered_for_programs_is_itself_again_when_the_last_one_has_been_told() -> None:
    before = limits.THREAD_QUEUE_MAX
    first, second = short_queues(), short_queues()

    first.__enter__()
    second.__enter__()
    assert before > limits.THREAD_QUEUE_MAX
    first.__exit__(None, None, None)
    assert before > limits.THREAD_QUEUE_MAX
    second.__exit__(None, None, None)

    assert before == limits.THREAD_QUEUE_MAX
