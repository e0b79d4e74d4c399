"""Programs from seeds: the same every time, and deep enough to meet what worries a store."""

from __future__ import annotations

import asyncio
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.core import limits
from perdure.core.deliveries import DeliveryState
from perdure.core.effects import EffectState
from perdure.store.protocol import Store
from perdure.testing.differential import APP, STORE, MemoryGround, author, operations
from perdure.testing.differential.acting import Act, Begin, Send, Work
from perdure.testing.differential.agents import app_on
from perdure.testing.differential.performing import short_queues

SEEDS = range(120)


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
    unsaid = {"next_due", "transact"}  # of runs that are overdue, or have a delay, a store may say either
    verbs = {name for name in vars(Store) if not name.startswith("_")}

    told = {each.verb for seed in SEEDS[:50] for each in written(seed) if isinstance(each, operations.Call)}

    assert told == verbs - life - looked_at - unsaid


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
    assert agents == set(app_on("memory://").agents) | {"nobody"}
    assert {type(each) for each in program} == set(typing.get_args(Act))
    assert {each.verb for each in program if isinstance(each, Send)} == {"retry", "release", "cancel"}
    assert {each.present for each in program if isinstance(each, Work)} == {True, False}


def test_an_apps_programs_hand_over_and_spend() -> None:
    met: Counter[str] = Counter()

    async def main() -> None:
        for seed in SEEDS[:45]:
            last = (await APP.tell(await APP.write(seed, APP.length), MemoryGround()))[-1]
            met.update(f"{each['sink']} {each['state']}" for each in last["handed over"])
            met.update(f"question {each['state']}" for each in last["questions"] if each["name"] == "budget")
            met.update(each["name"].partition(":")[0] for each in last["budgets"])
            met.update(each["name"] for each in last["used"]["run"])

    asyncio.run(main())
    wanted = (
        "bus delivered", "strict dead", "strict delivered", "bills delivered", "question open", "question answered",
        "run", "agent", "tenant", "usd", "tokens", "handed",
    )  # fmt: skip
    assert [name for name in wanted if met[name] < 2] == []


def written(seed: int) -> tuple[operations.Operation, ...]:
    return asyncio.run(author.write(seed, STORE.length))


WORRIES = (
    "dead", "lost", "refused", "written", "Started again", "KeyTaken", "ThreadHeld", "OtherAgent", "records", "tries",
    "state", "suspect", "poison", "taken over", "given back", "retry", "release", "silent", "completed", "failed",
    "cancelled", "waiting", "QuestionOpen", "ParentGone", "child", "rollback", "no thread", "full", "gone", "awake",
    "cancellation", "question answered", "question expired", "question withdrawn", "not the first answer", "waits",
    "came", "mail", "dead letter", "revived", "forked", "not sent", "cancel at once", "cancel later", "never", "due",
    *(f"effect {state}" for state in EffectState), "effects", "resolved", "undoing",
    *(f"delivery {state}" for state in DeliveryState), "delivery behind", "handed", "sent on", "bill", "second bill",
    "metered", "used", "budget", "spent", "reserved", "budget set again", "known key",
)  # fmt: skip


def worries(operation: Any, answer: Any) -> Iterator[str]:
    """What this answer shows to have been met."""
    match operation:
        case operations.Silent() if answer:
            yield "silent"
        case operations.Look():
            yield from _seen(answer)
        case operations.Call(verb="commit"):
            yield "dead" if not answer["alive"] else "lost" if answer["lost"] else "written"
            yield "refused" if answer["refused"] else "taken"
            yield from (why.replace("_", " ") for why in answer["bounced"].values())
            yield from ["awake"] if answer["awake"] else []
            yield from ["cancellation"] if answer["cancelled"] else []
        case operations.Call(verb="start"):
            yield from (each["is"] for each in answer if each["is"] != "Started")
            yield from ("Started again" for each in answer if each.get("created") is False)
        case operations.Call(verb="claim"):
            for each in answer:
                yield from (name for name in ("records", "state", "waits", "effects", "undoing") if each[name])
                yield from ("tries" for _ in each["attempts"][:1])
                yield from ("came" for wait in each["waits"] if wait["ready"])
                yield "suspect" if each["strikes"] >= 3 else "sound"
        case operations.Call(verb="take_over"):
            yield from ("poison" if each["held"] else "taken over" for each in answer)
        case operations.Call(verb="give_back" | "retire") if answer:
            yield "given back"
        case operations.Call(verb="retry" | "release") if answer and answer["state"] == "queued":
            yield operation.verb
        case operations.Call() if answer:
            yield from _asked(operation.verb, answer)


def _asked(verb: str, answer: Any) -> Iterator[str]:
    """What an outsider was told."""
    match verb:
        case "answer" if answer["is"] == "NotAnswered":
            yield "not the first answer"
        case "send":
            yield from ("not sent" for each in answer if each["is"] == "NotSent")
            yield from ("known key" for each in answer if each.get("message"))
        case "claim_deliveries":
            yield "handed"
        case "redeliver" if any(each["state"] == "queued" and not each["attempts"] for each in answer):
            yield "sent on"
        case "set_budget" if answer["rev"] > 1:
            yield "budget set again"
        case "resolve" if answer["by"] or answer["note"]:
            yield "resolved"
        case "cancel":
            yield "cancel at once" if answer["state"] == "cancelled" else "cancel later"
        case "fork" if answer["is"] == "Started":
            yield "forked"
        case "revive":
            yield "revived"


def _seen(everything: Any) -> Iterator[str]:
    """What there is in a store."""
    for run in everything["runs"]:
        yield run["state"]
        yield from ["child"] if run["parent"] is not None else []
        yield from ["rollback"] if run["rollback"] else []
        yield from ["never"] if run["ready_at"] == "never" else []
    yield from (f"question {each['state']}" for each in everything["questions"])
    yield from (f"effect {each['state']}" for each in everything["effects"])
    yield from ("due" for each in everything["waits"] if each["due"])
    yield from ("mail" for box in everything["mail"].values() for _ in box)
    yield from ("dead letter" for _ in everything["dead letters"])
    for delivery in everything["handed over"]:
        yield f"delivery {delivery['state']}"
        yield from ["delivery behind"] if delivery["state"] == "queued" and not delivery["ready"] else []
    yield from ("second bill" if each["key"].endswith(":2") else "bill" for each in everything["bills"])
    yield from ("metered" for rows in everything["meters"].values() for _ in rows)
    yield from ("used" for rows in everything["used"] if rows)
    for budget in everything["budgets"]:
        yield from (name for name in ("spent", "reserved") if budget[name]["steps"])


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
