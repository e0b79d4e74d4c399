"""Records that are older than the code which reads them: a look at one never fails, and whoever asks for the value is
told which one, and why."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import App, NotSerializable
from tests.runtime.world import fresh_app, working


@dataclass
class Receipt:
    number: int = 0


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        raise LookupError("no such number any more")


def with_a_result(returns: Any, value: Any) -> tuple[App, str]:
    """An app whose agent returned this, and the run."""
    app = fresh_app()

    async def agent() -> Any:
        return value

    agent.__annotations__["return"] = returns
    app.agent(agent)

    async def main() -> str:
        async with working(app):
            handle = await app.start("agent", thread_id="t")
            await handle.result(timeout=20)
            return handle.run_id

    return app, asyncio.run(main())


def newer(app: App, returns: Any) -> App:
    """The same app after a deploy: its agent returns something else."""
    changed = App("newer", store=app.store_url)

    async def agent() -> Any:
        return None

    agent.__annotations__["return"] = returns
    changed.agent(agent)
    return changed


@pytest.mark.parametrize("returns", [int, Picky], ids=["another type", "a validator that raises"])
def test_a_result_of_an_older_type_is_shown_as_recorded_with_a_note(returns: Any) -> None:
    app, run_id = with_a_result(Receipt, Receipt(7))

    async def main() -> Any:
        async with newer(app, returns) as changed:
            (listed,) = await changed.runs()
            return listed, await changed.run_info(run_id), await changed.handle(run_id).status()

    listed, info, status = asyncio.run(main())
    assert info.state == listed.state == "completed"
    assert info.result == {"number": 7} and info == status
    assert info.result_note is not None and "as recorded" in info.result_note
    assert "declared type int" in info.result_note or "no such number any more" in info.result_note


@pytest.mark.parametrize("returns", [int, Picky], ids=["another type", "a validator that raises"])
def test_whoever_waits_for_a_result_of_an_older_type_is_told_which_and_why(returns: Any) -> None:
    app, run_id = with_a_result(Receipt, Receipt(7))

    async def main() -> None:
        async with newer(app, returns) as changed:
            with pytest.raises(NotSerializable, match=f"(?s){run_id} .*agent .*perdure runs show {run_id}") as caught:
                await changed.handle(run_id).result(timeout=5)
            assert caught.value.run_id == run_id and caught.value.recorded == {"number": 7}

    asyncio.run(main())


def test_a_result_that_still_loads_has_no_note() -> None:
    app, run_id = with_a_result(Receipt, Receipt(7))

    async def main() -> Any:
        async with newer(app, dict[str, int]) as changed:
            return await changed.run_info(run_id)

    info = asyncio.run(main())
    assert (info.result, info.result_note) == ({"number": 7}, None)


def test_a_state_of_an_older_type_is_an_error_that_names_its_thread() -> None:
    app = fresh_app()

    @app.agent(name="agent")
    async def before(*, state: Receipt) -> None:
        state.number = 1

    @dataclass
    class Other:
        name: str

    changed = App("newer", store=app.store_url)

    @changed.agent(name="agent")
    async def after(*, state: Other) -> None: ...

    async def main() -> None:
        async with working(app):
            await (await app.start(before, thread_id="customer-7")).result(timeout=20)
            async with changed:
                with pytest.raises(NotSerializable, match="perdure threads show customer-7 --state") as caught:
                    await changed.thread("customer-7").state()
                assert caught.value.thread_id == "customer-7" and "name" in str(caught.value)

    asyncio.run(main())
