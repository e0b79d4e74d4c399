"""The research team, at work in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import App
from perdure.core.records import Kind
from perdure.demo import agents
from perdure.demo.approver import Approver, always
from perdure.demo.billing import Entry, Receipt, read_book
from perdure.demo.brief import Brief, read_brief
from perdure.demo.model import Endpoint
from perdure.demo.ranker import Citation
from perdure.testing import FakeModel, rate_limited, stream
from tests.support.billing import serving

QUESTION = 'What is the difference between "break" and "continue"?'


async def answered(question: str) -> tuple[agents.Result, list[tuple[int, str]]]:
    """The result of one run, and its recorded steps by super-step and key."""
    app = App("library", store="memory://")
    agent = app.agent(agents.research.fn)
    async with app, app.worker():
        handle = await app.start(agent, question)
        result: agents.Result = await handle.result(timeout=30)
        steps = [(entry.super_step, entry.key) for entry in await handle.history() if entry.kind is Kind.STEP]
        return result, steps


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "brief", Brief(think_ms=(0, 0)))


def test_a_question_is_answered_with_citations() -> None:
    result, _ = asyncio.run(answered(QUESTION))

    assert result["question"] == QUESTION
    assert "[1]" in result["answer"]
    assert result["citations"][0].number == 1
    assert result["queries"][1:] == ['"break"', '"continue"']


def test_the_lead_plans_reads_and_writes_in_three_super_steps() -> None:
    _, steps = asyncio.run(answered(QUESTION))

    by_super_step = {number: sum(step == number for step, _ in steps) for number in (1, 2, 3)}
    assert by_super_step == {1: 1, 2: 3 * (1 + 2 * 2), 3: 1}
    assert len(set(steps)) == len(steps)


def test_the_same_question_has_the_same_answer() -> None:
    assert asyncio.run(answered(QUESTION))[0] == asyncio.run(answered(QUESTION))[0]


@pytest.mark.parametrize(("lose_every", "entries"), [(0, ["charge"]), (1, ["charge", "lost"])])
@pytest.mark.parametrize("question", [QUESTION, 'How does the "pass" statement work?'])
def test_an_answer_is_charged_once_after_its_approval(
    question: str, lose_every: int, entries: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def charged(url: str) -> agents.Result:
        monkeypatch.setattr(agents, "brief", Brief(think_ms=(0, 0), billing=url, approver="ann"))
        app = App("library", store="memory://")
        agent = app.agent(agents.research.fn)
        async with app, app.worker():
            handle = await app.start(agent, question)
            while not await Approver(app, "ann", always).answer_all():
                await asyncio.sleep(0.01)  # until it has asked
            result: agents.Result = await handle.result(timeout=30)
            return result

    with serving(tmp_path / "book", lose_every=lose_every) as url:
        result = asyncio.run(charged(url))

    price = agents.ANSWER_CENTS + agents.SOURCE_CENTS * len(result["citations"])
    book = [line for line in read_book(tmp_path / "book") if line.entry is not Entry.REPEAT]
    assert result["receipt"] == Receipt("receipt 1", price)
    assert [line.entry.value for line in book] == entries


def test_some_questions_are_charged_in_the_one_way_and_some_in_the_other() -> None:
    assert agents.charge_of(QUESTION) is agents.charge_card
    assert agents.charge_of('How does the "pass" statement work?') is agents.charge_account


def test_a_question_about_nothing_known_still_ends() -> None:
    result, _ = asyncio.run(answered("zyzzyva?"))

    assert result["citations"] == []


def test_a_model_plans_notes_and_writes_and_its_429_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def with_model() -> tuple[agents.Result, int]:
        replies = [stream("break and", " continue"), rate_limited(0), stream("It ends", " a loop."), "A loop ends [1]."]
        model = FakeModel(replies)
        async with model.serve() as url:
            monkeypatch.setattr(agents, "endpoint", Endpoint(url, "tiny"))
            monkeypatch.setattr(agents, "brief", Brief(readers=1, passages=1))
            result, _ = await answered(QUESTION)
            await agents.model().close()
            return result, model.count

    result, calls = asyncio.run(with_model())

    assert result["answer"] == "A loop ends [1]."
    assert calls == 4


def test_an_answer_without_marks_gets_its_sources() -> None:
    citations = [Citation(1, "a#1", "A"), Citation(2, "b#1", "B")]

    assert agents.with_marks("A loop ends.", citations) == "A loop ends. [1][2]"
    assert agents.with_marks("A loop [2] ends.", citations) == "A loop [2] ends."


def test_thinking_takes_as_long_as_the_brief_allows_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "brief", Brief(think_ms=(20, 60)))
    times = [agents.think_s(("r1", 2, f"read#{number}")) for number in range(100)]

    assert 0.02 <= min(times) < max(times) <= 0.06
    assert times[0] == agents.think_s(("r9", 2, "read#0"))


def test_a_brief_survives_its_way_through_the_environment() -> None:
    brief = Brief(docs="docs", sidelog="log", think_ms=(1, 2))

    assert read_brief(brief.environ()) == brief
    assert read_brief({}) == Brief()
