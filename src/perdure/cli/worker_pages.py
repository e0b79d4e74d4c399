"""The page of `perdure workers list`."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rich.text import Text

from perdure.cli.remedies import command
from perdure.core.records import Worker, WorkerState, worker_id
from perdure.store.protocol import Store
from perdure.terminal.page import Middle, Page, state, table
from perdure.terminal.text import ago, duration


def print_workers(page: Page, rows: Sequence[Worker], *, silent: Container[int], now_us: int) -> None:
    """The list, or how to get one worker."""
    if not rows:
        what = "no live worker (--all shows those that ended); start one: "
        page.print(Text.assemble((what, "dim"), command("perdure worker MODULE:APP")))
        return
    made = table(
        "worker", "name", "state", "host", "pid", "deployment", "runs", "started", "lease",
        right=("pid", "runs"), give=("name", "host", "deployment"),
    )  # fmt: skip
    for row in rows:
        made.add_row(
            worker_id(row.id),
            Middle(row.name),
            Text("no sign of life", "bold red")
            if is_silent(row, silent=silent, now_us=now_us)
            else state(row.state.value),
            Middle(row.host),
            str(row.pid),
            Middle(row.deployment),
            str(row.running),
            ago(row.started_at, now_us=now_us),
            lease(row, now_us=now_us),
        )
    page.print(made)


def is_silent(row: Worker, *, silent: Container[int], now_us: int) -> bool:
    """Whether nothing is heard of a worker that has not ended, as far as its row says."""
    return row.state is WorkerState.ALIVE and (row.id in silent or row.lease_until <= now_us)


async def is_anybody_alive(store: Store) -> bool:
    """Whether any worker shows a sign of life."""
    rows, silent, now_us = await store.workers(alive=True), await store.silent_workers(), await store.now_us()
    return any(not is_silent(row, silent=silent, now_us=now_us) for row in rows)


def standing(row: Worker, *, silent: Container[int], now_us: int) -> Text:
    """What became of a worker, in a few words. When it was last heard of is not recorded, but how long that holds."""
    if not is_silent(row, silent=silent, now_us=now_us):
        return state(row.state.value)
    left = row.lease_until - now_us
    until = f"ends in {duration(left)}" if left > 0 else f"ran out {ago(row.lease_until, now_us=now_us)}"
    return Text(f"no sign of life; its lease {until}", style="bold red")


def lease(row: Worker, *, now_us: int) -> Text:
    """How long it may stay silent, or since when it is gone."""
    if row.state is not WorkerState.ALIVE:
        return Text("" if row.ended_at is None else f"ended {ago(row.ended_at, now_us=now_us)}", style="dim")
    left = row.lease_until - now_us
    return (
        Text(f"{duration(left)} left")
        if left > 0
        else Text(f"out {ago(row.lease_until, now_us=now_us)}", style="bold red")
    )
