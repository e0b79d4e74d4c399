"""Patience with a store that is away: for ever, where a worker must write what it has, or for a while, where somebody
waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.errors import StoreUnavailable
from perdure.runtime.service import Backoff

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long a verb that may be repeated outwaits a store that restarts, before it raises `StoreUnavailable`."""


async def insist(service: str, attempt: Callable[[], Awaitable[None]]) -> None:
    """Call `attempt` until it succeeds once, however long the store is away; any other error is the caller's."""
    backoff = Backoff(service)
    while True:
        try:
            await attempt()
        except StoreUnavailable as error:
            await asyncio.sleep(backoff.failed(error))
        else:
            return backoff.succeeded()


async def outlast(service: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """The same, with what it returns."""
    found: list[T] = []

    async def once() -> None:
        found.append(await attempt())

    await insist(service, once)
    return found[0]


async def patiently(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """What is done again while the store restarts: ids may be left unused, and what was written is recognised."""
    backoff = Backoff(what)
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            outcome = await attempt()
        except StoreUnavailable as error:
            pause_s = backoff.failed(error)
            if asyncio.get_running_loop().time() + pause_s > give_up_at:
                raise
            await asyncio.sleep(pause_s)
        else:
            backoff.succeeded()
            return outcome
