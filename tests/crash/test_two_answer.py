"""Two processes answer the same questions at once: each question has one winner, whoever lost is told what won and
whose it was, and the agent got what won."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import AlreadyAnswered, App
from tests.support.children import go_when_ready, run_children
from tests.support.processes import Fleet
from tests.support.sidelog import VARIABLE, SideLog, say
from tests.support.waiters import app_on
from tests.support.waiting import becomes, until

NAMES = ("ann", "ben")
QUESTIONS = 1000
AT_ONCE = 16
ROUND = 50
"""Questions before the two wait for each other, so that nobody runs away with all of them."""
SHARE_MIN = 0.05
"""Of the questions, each must have won: else they did not race."""


def answer_all(log: str, store_url: str, name: str, ready: str, go: str) -> None:
    """In a process of its own: read the inbox, say so, wait for the signal, answer everything, at the other's pace."""
    os.environ[VARIABLE] = log
    folder = Path(go).parent

    async def main() -> None:
        async with app_on(store_url) as app:
            asked = [each.id for each in await app.interrupts(limit=1000)]
            places = asyncio.Semaphore(AT_ONCE)
            Path(ready).touch()
            until(Path(go).exists, "the signal comes")
            for at in range(0, len(asked), ROUND):
                await asyncio.gather(*(_answer(app, each, name, places) for each in asked[at : at + ROUND]))
                (folder / f"{name} {at}").touch()
                until(lambda at=at: all((folder / f"{each} {at}").exists() for each in NAMES), "both are so far")

    asyncio.run(main())


async def _answer(app: App, question: str, name: str, places: asyncio.Semaphore) -> None:
    async with places:
        try:
            info = await app.resume(question, f"{name} on {question}", by=name)
        except AlreadyAnswered as lost:
            say("lost", question=question, name=name, answer=lost.answer, by=lost.by)
        else:
            say("won", question=question, name=name, answer=info.answer, by=info.answered_by, run=info.run_id)


@pytest.mark.timeout(120)
def test_of_two_processes_that_answer_a_thousand_questions_one_wins_each_and_the_other_is_told(
    waiters: Fleet, log: SideLog, tmp_path: Path
) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire().started()
            handles = await asyncio.gather(*(app.start("asks", 1) for _ in range(QUESTIONS)))
            await becomes(lambda: _all_are_asked(app), "all questions are asked")
            await asyncio.to_thread(_race, waiters.store_url, log, tmp_path)
            heard = {handle.run_id: await handle.result(timeout=30) for handle in handles}
        _judge(log, heard)

    asyncio.run(main())


def _race(store_url: str, log: SideLog, folder: Path) -> None:
    go = folder / "go"
    ready = [folder / f"{name} is ready" for name in NAMES]
    with go_when_ready(ready, go):
        codes = run_children(
            answer_all,
            [(str(log.path), store_url, name, str(at), str(go)) for name, at in zip(NAMES, ready, strict=True)],
        )
    assert codes == [0, 0]


def _judge(log: SideLog, heard: dict[str, list[str]]) -> None:
    won = {line["question"]: line for line in log.lines("won")}
    lost = {line["question"]: line for line in log.lines("lost")}
    assert len(log.lines("won")) == len(log.lines("lost")) == len(won) == len(lost) == QUESTIONS
    for question, winner in won.items():
        loser = lost[question]
        assert {winner["name"], loser["name"]} == set(NAMES)
        assert winner["answer"] == loser["answer"] == f"{winner['name']} on {question}"
        assert winner["by"] == loser["by"] == winner["name"]
        assert heard[winner["run"]] == [winner["answer"]]
    wins = [sum(line["name"] == name for line in won.values()) for name in NAMES]
    print(f"{QUESTIONS:,} questions: {wins[0]} won by one, {wins[1]} by the other")
    assert min(wins) >= SHARE_MIN * QUESTIONS, wins


async def _all_are_asked(app: App) -> bool:
    return len(await app.interrupts(limit=1000)) == QUESTIONS
