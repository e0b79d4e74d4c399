"""Questions, messages and waits as JSON documents. The names are a contract: a question's are `InterruptInfo`'s, a
message's `MessageInfo`'s. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from perdure.cli.awaiting import Around
from perdure.cli.reading import WHOLE
from perdure.client.inbox import InterruptInfo
from perdure.client.mail import MessageInfo
from perdure.core.display import to_jsonable
from perdure.core.records import Interrupt, Run, Wait, WaitKind, interrupt_id, run_id
from perdure.terminal.text import iso

Document = dict[str, Any]


def interrupt_document(info: InterruptInfo) -> Document:
    """A question, as the inbox lists it."""
    return {
        "id": info.id,
        "run_id": info.run_id,
        "thread_id": info.thread_id,
        "agent": info.agent,
        "name": info.name,
        "state": info.state.value,
        "payload": jsonable(info.payload),
        "schema": info.schema,
        "assignee": info.assignee,
        "digest": info.digest,
        "on_timeout": info.on_timeout,
        "created_at": utc(info.created_at),
        "expires_at": utc(info.expires_at),
        "answer": jsonable(info.answer),
        "answered_by": info.answered_by,
        "answered_at": utc(info.answered_at),
        "tenant": info.tenant,
        "run_cancel": info.run_cancel,
    }


def message_document(info: MessageInfo) -> Document:
    """A message in a mailbox, or a dead letter."""
    return {
        "id": info.id,
        "thread_id": info.thread_id,
        "seq": info.seq,
        "sender": info.sender,
        "type": info.type,
        "message": jsonable(info.message),
        "sent_at": utc(info.sent_at),
        "dead": info.dead,
    }


def wait_document(wait: Wait, around: Around) -> Document:
    """What a run waits for under one key."""
    target = wait.target or 0
    return {
        "key": wait.key,
        "super_step": wait.super_step,
        "kind": wait.kind.name.lower(),
        "opened_at": iso(wait.opened_at),
        "due_at": None if wait.due_at is None else iso(wait.due_at),
        "ready": wait.ready,
        "interrupt": interrupt_id(target) if wait.kind is WaitKind.ANSWER else None,
        "run": run_id(target) if wait.kind is WaitKind.RUN else None,
        "thread": around.threads.get(target) if wait.kind is WaitKind.ROOM else None,
        "labels": list(wait.labels),
    }


def asked_document(row: Interrupt) -> Document:
    """A question, as its run's page lists it: `interrupts show` has all of it."""
    return {
        "id": interrupt_id(row.id),
        "key": row.key,
        "super_step": row.super_step,
        "name": row.name,
        "state": row.state.value,
        "assignee": row.assignee,
        "created_at": iso(row.created_at),
        "expires_at": None if row.expires_at is None else iso(row.expires_at),
        "answered_by": row.answered_by,
        "answered_at": None if row.answered_at is None else iso(row.answered_at),
    }


def child_document(child: Run) -> Document:
    """A run that another one has started, as that one's page lists it."""
    return {
        "run_id": run_id(child.id),
        "thread_id": child.thread_id,
        "agent": child.agent,
        "state": child.state.value,
        "parent": None if child.parent is None else run_id(child.parent),
        "detached": child.detached,
        "created_at": iso(child.created_at),
    }


def jsonable(value: Any) -> Any:
    """Plain data as JSON, whole."""
    return to_jsonable(value, WHOLE)


def utc(moment: datetime | None) -> str | None:
    """A time as JSON carries it."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
