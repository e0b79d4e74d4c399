"""The agents of the crash-point scenarios that hand over, meter, spend and write tables of their own."""

from __future__ import annotations

import zlib

import perdure
from perdure import Budget, Outgoing, Retry, Sink, Transaction
from tests.support.agents import note
from tests.support.lives import app
from tests.support.sidelog import say


class Counter(Sink):
    """Takes everything, and says so in the side log."""

    retry = Retry(attempts=1_000, delay_s=0.02, max_delay_s=0.1)

    async def deliver(self, item: Outgoing) -> None:
        say("handed over", key=item.key, thread=item.thread_id, attempt=item.attempt)


app.sink("counter", Counter())


@perdure.step
async def think(word: str) -> str:
    perdure.meter("tokens", 10, model="small")
    return await note(word)


@app.agent
async def trading(word: str) -> int:
    """Three deliveries, one of them under a key of its own, and what they cost."""
    here = perdure.current().thread_id
    for place in range(2):
        await think(f"{word}{place}")
        await perdure.deliver("counter", {"word": word, "place": place}, key=f"{here}/{place}")
    perdure.meter("deals", 1)
    await perdure.deliver("counter", word, key=f"{here}/last", partition=here + "/other")
    return 3


@app.agent(budget=Budget(tokens=15))
async def saving(word: str) -> str:
    """Three steps, of which the budget allows two; then a person decides."""
    for place in range(3):
        word = await think(f"{word}{place}")
    return word


@perdure.transaction(timeout=None)
async def move(tx: Transaction, number: int) -> int:
    """Write a line into a table of this thread's, and read how many there are."""
    table = f"moves_{zlib.crc32(perdure.current().thread_id.encode())}"
    await tx.execute(f"create table if not exists {table} (number integer not null)")
    await tx.execute(f"insert into {table} (number) values ({number})")
    count: int = await tx.fetch_value(f"select count(*) from {table}")
    return count


@app.agent
async def moving() -> list[int]:
    """Three transactions, and a step between."""
    first = await move(1)
    await note("between")
    return [first, await move(2), await move(3)]
