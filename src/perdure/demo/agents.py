"""The research team: a lead who plans and writes, and readers who search, read and extract.

An ordinary perdure app. Each question is a thread. Its lead works in super-steps, planning, reading, writing and
charging, with a checkpoint of its notebook between them. The readers are plain async functions under `asyncio.gather`;
every call they make is a step, recorded once. The charge is an effect, and a person's approval stands before it. Run a
worker on it by hand with `perdure worker perdure.demo.agents:app`; without a billing service its answers cost nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypedDict
from weakref import WeakKeyDictionary

import perdure
from perdure import Again, App, DidNotHappen, Happened, Retry
from perdure.demo import billing
from perdure.demo.billing import Receipt
from perdure.demo.brief import read_brief
from perdure.demo.corpus import Passage
from perdure.demo.model import ModelClient, endpoint_from
from perdure.demo.ranker import Answer, Citation, Hit, Note, Ranker, cite, compose, merge, ranker_of, tokens
from perdure.demo.sidelog import SideLog, What, reported
from perdure.errors import NotInRun
from perdure.runtime.effect import Effect

app = App("perdure-demo")

brief = read_brief()
endpoint = endpoint_from()
log = SideLog(Path(brief.sidelog)) if brief.sidelog else None

MODEL_RETRY: Final = Retry(attempts=6)
MODEL_TIMEOUT_S: Final = 600.0
"""A small model on two busy cores serves one call after the other; the last in the queue waits for all of them."""

CHARGE_RETRY: Final = Retry(attempts=5, delay_s=0.1)

ANSWER_CENTS: Final = 20
SOURCE_CENTS: Final = 5
"""What an answer costs, and what each of its sources."""

PROMPT_CHARS: Final = 1000
"""Of a passage, in a prompt: reading it is what a small model takes longest for."""


class Stage(StrEnum):
    """What the lead does next."""

    PLAN = "plan"
    READ = "read"
    WRITE = "write"
    CHARGE = "charge"


@dataclass
class Notebook:
    """The thread's state: what the lead has so far."""

    stage: Stage = Stage.PLAN
    queries: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Answer("", []))


@dataclass
class Approval:
    """What a person says to a charge."""

    approve: bool
    note: str = ""


class Result(TypedDict):
    """What a run returns."""

    question: str
    answer: str
    citations: list[Citation]
    queries: list[str]
    receipt: Receipt | None
    """None where nothing was charged."""


@app.agent
async def research(question: str, *, state: Notebook) -> Result | Again:
    """Answer a question from the documents, with citations, and charge for it."""
    entered()
    match state.stage:
        case Stage.PLAN:
            state.queries = await plan(question)
            state.stage = Stage.READ
            return Again(question)
        case Stage.READ:
            readings = await asyncio.gather(*(reader(question, query) for query in state.queries))
            state.notes = merge(note for notes in readings for note in notes)
            state.stage = Stage.WRITE
            return Again(question)
        case Stage.WRITE:
            state.answer = await write(question, state.notes)
            if brief.billing is None:
                return result(question, state, None)
            state.stage = Stage.CHARGE
            return Again(question)
        case Stage.CHARGE:
            return result(question, state, await approved_charge(question, state.answer))


async def reader(question: str, query: str) -> list[Note]:
    """One reader: search, then read and extract from each passage found, all at once."""
    hits = await search(query)

    async def digest(hit: Hit) -> list[Note]:
        return await extract(question, await read(hit.passage))

    return [note for notes in await asyncio.gather(*map(digest, hits)) for note in notes]


async def approved_charge(question: str, answer: Answer) -> Receipt | None:
    """Charge for an answer, where a person approves: once, whatever happens on the way."""
    account, cents = perdure.current().thread_id, ANSWER_CENTS + SOURCE_CENTS * len(answer.citations)
    approval = await perdure.interrupt(
        {"charge": account, "cents": cents, "for": question}, name="approve", schema=Approval, assignee=brief.approver
    )
    if not approval.approve:
        return None
    return await charge_of(question)(account, cents)


@app.agent
async def pay(account: str, cents: int) -> Receipt:
    """One charge and nothing else: `perdure demo once`."""
    return await charge_card(account, cents)


# -- effects ------------------------------------------------------------------------------------------------------


@perdure.effect(on_unknown="retry", retry=CHARGE_RETRY)
def charge_card(account: str, cents: int) -> Receipt:
    """Charge. Where the outcome is unknown, the same key is sent again: the service charges a key once."""
    return charged(account, cents)


def look_up(key: str, args: dict[str, object]) -> Happened | DidNotHappen:
    """Ask the service whether a key was charged."""
    found = billing.find(service(), key)
    return DidNotHappen() if found is None else Happened(found)


@perdure.effect(verify=look_up, retry=CHARGE_RETRY)
def charge_account(account: str, cents: int) -> Receipt:
    """Charge. Where the outcome is unknown, the service is asked."""
    return charged(account, cents)


def charge_of(question: str) -> Effect[[str, int], Receipt]:
    """Half of the questions are charged in the one way and half in the other, always the same."""
    return charge_card if zlib.crc32(question.encode()) % 2 else charge_account


def charged(account: str, cents: int) -> Receipt:
    """The request, reported as the body of a step is."""
    here = perdure.current()
    with reported(log, (here.run_id, here.super_step, here.step or "")):
        return billing.charge(service(), perdure.effect_key(), account, cents)


# -- steps --------------------------------------------------------------------------------------------------------


@perdure.step(retry=MODEL_RETRY, timeout=MODEL_TIMEOUT_S)
async def plan(question: str) -> list[str]:
    """The queries to search for: the question itself, and other ways to put it."""
    async with at_work() as heard:
        asked = [question.rstrip("?"), *planned_by_rule(question)]
        if endpoint is not None:
            prompt = f"List {brief.readers - 1} short search queries, one per line, that help to answer: {question}"
            text = await model().chat(prompt, max_tokens=brief.tokens, on_text=heard)
            asked[1:1] = [line.strip(' -*•"0123456789.)')[:120] for line in text.splitlines()]
        return list(dict.fromkeys(query for query in asked if tokens(query)))[: brief.readers] or asked[:1]


@perdure.step
async def search(query: str) -> list[Hit]:
    """The best passages for a query."""
    async with at_work():
        return ranker().search(query, brief.passages)


@perdure.step
async def read(passage: str) -> Passage:
    """A passage's text."""
    async with at_work():
        return ranker().passages[passage]


@perdure.step(retry=MODEL_RETRY, timeout=MODEL_TIMEOUT_S)
async def extract(question: str, passage: Passage) -> list[Note]:
    """What the passage says about the question."""
    async with at_work() as heard:
        notes = ranker().extract(question, passage)
        if endpoint is None or not notes:
            return notes
        prompt = f"{passage.text[:PROMPT_CHARS]}\n\nIn one sentence, what does this text say about: {question}"
        quote = await model().chat(prompt, max_tokens=brief.tokens, on_text=heard)
        return [Note(passage.id, passage.name, " ".join(quote.split()) or notes[0].quote, notes[0].score)]


@perdure.step(retry=MODEL_RETRY, timeout=MODEL_TIMEOUT_S)
async def write(question: str, notes: list[Note]) -> Answer:
    """The answer, each claim with its source's number."""
    async with at_work() as heard:
        if endpoint is None or not notes:
            return compose(notes)
        citations = cite(notes[:4])
        number = {citation.passage: citation.number for citation in citations}
        listed = "\n".join(f"[{number[note.passage]}] {note.quote[:400]}" for note in notes[:4])
        prompt = f"{listed}\n\nUsing these notes and citing them like [1], answer briefly: {question}"
        text = await model().chat(prompt, max_tokens=brief.tokens, on_text=heard)
        return Answer(with_marks(text, citations), citations)


# -- without which no step works ----------------------------------------------------------------------------------


def entered() -> None:
    """Report that this process has the run in hand."""
    if log is not None:
        here = perdure.current()
        log.write((here.run_id, here.super_step, ""), What.ENTER)


def result(question: str, state: Notebook, receipt: Receipt | None) -> Result:
    answer = state.answer
    return Result(
        question=question, answer=answer.text, citations=answer.citations, queries=state.queries, receipt=receipt
    )  # fmt: skip


def service() -> str:
    """The billing service's URL."""
    assert brief.billing is not None, "only asked for where there is one"
    return brief.billing


def ranker() -> Ranker:
    """The index over this worker's documents."""
    return ranker_of(brief.docs)


if log is not None:
    ranker()  # In a scene's worker the index is there before the first run: no step has to pay for it.

clients: WeakKeyDictionary[asyncio.AbstractEventLoop, ModelClient] = WeakKeyDictionary()


def model() -> ModelClient:
    """This event loop's client of the endpoint."""
    assert endpoint is not None, "only asked for where an endpoint is set"
    loop = asyncio.get_running_loop()
    if loop not in clients:
        clients[loop] = ModelClient(endpoint)
    return clients[loop]


def planned_by_rule(question: str) -> list[str]:
    """Other ways to put a question: the two sides of a comparison, its rarest words, the best passage's name."""
    index = ranker()
    sides = re.search(r"(?:between|do) (.+) and (.+?)(?: relate)?\?", question)
    rare = sorted(set(tokens(question)), key=lambda word: (-index.weight(word), word))[:3]
    best = [index.passages[hit.passage].name for hit in index.search(question, 1)]
    return [*(sides.groups() if sides else ()), *best, " ".join(rare)]


def with_marks(text: str, citations: list[Citation]) -> str:
    """The text; where the model cited nothing, the sources it was given stand at the end."""
    if re.search(r"\[\d+\]", text):
        return text
    return f"{text} {''.join(f'[{citation.number}]' for citation in citations)}".strip()


@asynccontextmanager
async def at_work() -> AsyncIterator[Callable[[str], None]]:
    """Around a step's body: report its begin and end, and think for a moment where there is no model to wait for.

    Gives what a model's client calls with each piece of text, to report that the stream is open.
    """
    try:
        here = perdure.current()
    except NotInRun:
        yield lambda piece: None
        return
    name = (here.run_id, here.super_step, here.step or "")
    with reported(log, name):
        if endpoint is None:
            await asyncio.sleep(think_s(name))
        yield stream_reporter(name)


def stream_reporter(name: tuple[str, int, str]) -> Callable[[str], None]:
    """Reports the first piece of a stream."""
    opened = False

    def heard(piece: str) -> None:
        nonlocal opened
        if log is not None and not opened:
            opened = True
            log.write(name, What.STREAM)

    return heard


def think_s(name: tuple[str, int, str]) -> float:
    """How long a step without a model takes: by a hash of its name, so always the same."""
    low, high = brief.think_ms
    share = hashlib.blake2b(repr(name[1:]).encode(), digest_size=2).digest()
    return (low + (high - low) * int.from_bytes(share) / 0xFFFF) / 1000
