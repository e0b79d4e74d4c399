"""Runs that wait for a person, while workers come and go."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from perdure import App, RunCancelled, ThreadBusy
from perdure.core.records import InterruptState, RunState
from tests.support.processes import ROOT, Fleet
from tests.support.waiters import app_on
from tests.support.waiting import becomes

PATIENCE_S = 20.0


async def asked(app: App, run_id: str) -> str:
    """The run's open question, once it has one and is parked."""

    async def look() -> list[str]:
        waits = (await app.run_info(run_id)).state is RunState.WAITING
        return [each.id for each in await app.interrupts(run_id=run_id)] if waits else []

    (question,) = await becomes(look, f"{run_id} has asked and is parked")
    return question


def test_c09_a_run_that_waits_for_a_person_outlives_a_graceful_shutdown(waiters: Fleet) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            old = waiters.hire().started()
            handle = await app.start("approves", "tea")
            question = await asked(app, handle.run_id)

            old.drain()
            assert old.ended() == 0
            info = await handle.status()
            assert (info.state, info.cancel, info.recoveries) == (RunState.WAITING, None, 0)
            assert (await app.interrupt_info(question)).state is InterruptState.OPEN

            waiters.hire().started()
            await app.resume(question, True, by="ann")
            assert await handle.result(timeout=PATIENCE_S) == "BOUGHT TEA"

    asyncio.run(main())


def test_c09_a_run_that_waits_for_a_person_in_one_branch_is_handed_back_with_its_question_open(
    waiters: Fleet, tmp_path: Path
) -> None:
    """Its other branch is in a body, which does not end in the time that a draining worker gives it."""
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            old = waiters.hire(grace_s=0.2).started()
            handle = await app.start("approves_beside", "tea", str(gate))
            await becomes(lambda: _begun(waiters, "hold_open"), "the other branch is busy")
            question = await becomes(lambda: _open(app, handle.run_id), "it has asked")

            old.drain()
            assert old.ended() == 0
            info = await handle.status()
            assert (info.state, info.cancel, info.recoveries) == (RunState.QUEUED, None, 0)
            assert (await app.interrupt_info(question)).state is InterruptState.OPEN

            await app.resume(question, True)  # while nobody works
            gate.touch()
            waiters.hire().started()
            assert await handle.result(timeout=PATIENCE_S) == ["BOUGHT TEA", "opened"]

    asyncio.run(main())
    assert len(waiters.log.lines("end", text="bought tea")) == 1


@pytest.mark.parametrize("alive", [True, False], ids=["worker alive", "worker dead"])
def test_c35_approvals_by_the_api_and_the_command_line_at_once_execute_it_once(waiters: Fleet, alive: bool) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app, app_on(waiters.store_url) as elsewhere:
            worker = waiters.hire().started()
            handle = await app.start("approves", "tea")
            question = await asked(app, handle.run_id)
            if not alive:
                worker.kill()

            told = await asyncio.gather(
                _by_command_line(waiters, question, "cli 1"),
                _by_command_line(waiters, question, "cli 2"),
                _by_api(app, question, "api"),
                _by_api(elsewhere, question, "page"),
            )
            assert len(set(told)) == 1, "everybody is told the same winner"
            if not alive:
                assert (await handle.status()).state is RunState.QUEUED, "woken, though there is nobody to take it"
                waiters.hire().started()
            assert await handle.result(timeout=PATIENCE_S) == "BOUGHT TEA"
            assert (await app.interrupt_info(question)).answered_by == told[0]

    asyncio.run(main())
    assert len(waiters.log.lines("begin", key="note", text="bought tea")) == 1


async def _by_api(app: App, question: str, by: str) -> str | None:
    return (await app.resume(question, True, by=by)).answered_by


async def _by_command_line(fleet: Fleet, question: str, by: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure", "resume", question, "true", "--by", by, "--store", fleet.store_url,
        cwd=ROOT, env=fleet.environ(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text
    (who,) = [name for name in ("cli 1", "cli 2", "api", "page") if f" by {name}:" in text.splitlines()[0]]
    return who


def test_c33_what_comes_to_a_thread_with_an_open_approval_is_refused_or_says_what_becomes_of_it(
    waiters: Fleet,
) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire().started()
            first = await app.start("approves", "tea", thread_id="desk")
            question = await asked(app, first.run_id)

            with pytest.raises(ThreadBusy, match=question) as busy:
                await app.start("approves", "milk", thread_id="desk")
            assert (busy.value.interrupt_id, busy.value.run_id) == (question, first.run_id)
            await app.send("desk", "hello?")
            second = await app.start("approves", "milk", thread_id="desk", if_busy="enqueue")
            assert (await app.interrupt_info(question)).state is InterruptState.OPEN, "the question is still there"
            assert (await app.start("approves", "tea", thread_id="desk", if_busy="join")).run_id == first.run_id

            await app.resume(question, True)
            assert await first.result(timeout=PATIENCE_S) == "BOUGHT TEA"
            open_now = await asked(app, second.run_id)
            third = await app.start("approves", "cake", thread_id="desk", if_busy="interrupt")
            with pytest.raises(RunCancelled, match=third.run_id):
                await second.result(timeout=PATIENCE_S)
            assert (await app.interrupt_info(open_now)).state is InterruptState.WITHDRAWN
            await app.resume(await asked(app, third.run_id), False)
            assert await third.result(timeout=PATIENCE_S) == "LEFT CAKE"
            assert [each.message for each in await app.thread("desk").mailbox()] == ["hello?"]

    asyncio.run(main())


async def _open(app: App, run_id: str) -> str | None:
    found = await app.interrupts(run_id=run_id)
    return found[0].id if found else None


async def _begun(fleet: Fleet, key: str) -> bool:
    return any(line["key"].endswith(key) for line in fleet.log.lines("begin"))
