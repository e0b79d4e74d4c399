"""The verbs of an app by which people and agents talk: questions and their answers, messages, dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.client import inbox, mail
from perdure.client.connection import Connected
from perdure.client.inbox import InterruptInfo
from perdure.client.mail import MessageInfo
from perdure.client.unrecorded import warn_in_agents
from perdure.runtime.agent import Agent


class Correspondence(Connected):
    """What an app can do about questions and messages."""

    _said: set[str]
    """The verbs about which agents have been warned."""

    async def interrupts(
        self,
        *,
        state: str | None = "open",
        agent: Agent[..., Any] | str | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        assignee: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[InterruptInfo]:
        """A page of the questions that agents have asked, oldest first; `after` is the last id of the page before."""
        where = inbox.interrupt_filter(
            state=state, agent=agent, thread_id=thread_id, run_id=run_id, assignee=assignee, tenant=tenant, limit=limit,
            after=after,
        )  # fmt: skip
        return await inbox.listed(await self._client(), where)

    async def interrupt_info(self, interrupt_id: str) -> InterruptInfo:
        """One question, whatever its state."""
        return await inbox.question(await self._client(), interrupt_id)

    async def resume(
        self, interrupt_id_or_thread_id: str, answer: Any, *, by: str | None = None, digest: str | None = None
    ) -> InterruptInfo:
        """Answer a question, by its id or by a thread that has exactly one open; its run goes on.

        The first answer wins; the same one again is a no-op. `by`: who answers. `digest`: what the answer is about, as
        `InterruptInfo.digest` said where it was seen. Raises `AlreadyAnswered` with the winner's `answer`, `by` and
        `at`; `InterruptClosed`, where it has expired or was withdrawn; `InvalidAnswer`, where the answer does not fit
        the question's schema, and the question stays; `Conflict`, for another digest or several open questions.
        """
        return await inbox.resume(await self._client(), interrupt_id_or_thread_id, answer, by=by, digest=digest)

    async def send(
        self,
        thread_id: str,
        message: Any,
        *,
        key: str | None = None,
        on_full: mail.OnFull = "reject",
        timeout: float | str | timedelta | None = None,
    ) -> str:
        """Put a message into a thread's mailbox, on disk; returns its id. With a `key` it arrives there once, however
        often it is sent: one that was sent before under that key is this one, for ever, and its id is returned.

        Raises `NotFound` for a thread that is not there, and `MailboxFull`; `on_full="block"` waits for room first, for
        `timeout` at most.
        """
        warn_in_agents("send", self._said)
        client = await self._client()
        return await mail.send(client, thread_id, message, on_full=on_full, timeout=timeout, key=key)

    async def dead_letters(
        self, thread_id: str | None = None, *, limit: int = 100, after: str | None = None
    ) -> list[MessageInfo]:
        """A page of messages that nobody could receive as they were, oldest id first."""
        return await mail.dead_letters(await self._client(), thread_id, limit=limit, after=after)

    async def replay_dead_letter(self, message_id: str) -> MessageInfo:
        """Put a dead letter back at the end of its mailbox."""
        return await mail.replay(await self._client(), message_id)
