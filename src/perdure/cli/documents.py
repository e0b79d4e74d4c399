"""Rows as JSON documents. The names are a contract: the first fifteen of a run are `RunInfo`'s. Pure.

Times are RFC 3339 strings in UTC, spans are seconds, sizes are bytes, absent things are null. Fields may be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.cli.delivery_documents import handed_document
from perdure.cli.effect_documents import open_effect_document
from perdure.cli.facts import Fact, Facts
from perdure.cli.reading import Mail, RunLog
from perdure.cli.remedies import told
from perdure.cli.timeline import SuperStep, Try
from perdure.cli.usage_documents import usage_document
from perdure.cli.verbs import Verb
from perdure.cli.waiting_documents import asked_document, child_document, wait_document
from perdure.cli.worker_pages import is_silent
from perdure.client.usage import info
from perdure.core.limits import NEVER_US
from perdure.core.meters import UsageBy
from perdure.core.records import Attempt, Checkpoint, ErrorInfo, Kind, Run, RunState, Thread, Worker, run_id, worker_id
from perdure.runtime.info import agent_state
from perdure.terminal.text import iso

Document = dict[str, Any]


def time(us: int | None) -> str | None:
    """A time, or null."""
    return None if us is None else iso(us)


def run_document(fact: Fact) -> Document:
    """A run, as every listing shows it."""
    run = fact.run
    return {
        "run_id": run_id(run.id),
        "thread_id": run.thread_id,
        "agent": run.agent,
        "state": run.state.value,
        "held_reason": run.reason if run.state is RunState.HELD else None,
        "attempt": run.attempt,
        "recoveries": run.recoveries,
        "deployment": run.deployment,
        "worker": None if run.worker is None else worker_id(run.worker),
        "waiting_for": fact.why.what if fact.why else None,
        "result": fact.result,
        "error": error_document(fact.error),
        "created_at": iso(run.created_at),
        "started_at": time(run.started_at),
        "ended_at": time(run.ended_at),
        "super_step": run.super_step,
        "queue": run.queue,
        "priority": run.priority,
        "key": run.key,
        "tenant": run.tenant,
        "tags": list(run.tags),
        "parent": None if run.parent is None else run_id(run.parent),
        "deadline_at": time(run.deadline_at),
        "cancel": run.cancel,
        "remedy": told(fact.why.remedy) if fact.why and fact.why.remedy else None,
        "reason": run.reason,
        "detail": run.detail,
        "ready_at": None if run.ready_at >= NEVER_US else iso(run.ready_at),
    }


def error_document(error: ErrorInfo | None) -> Document | None:
    """A recorded error."""
    return None if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}


def run_page_document(fact: Fact, log: RunLog, *, full: bool) -> Document:
    """A run with its timeline and its workers."""
    involved = {step.worker for step in log.steps()}
    if fact.run.worker is not None:
        involved.add(fact.run.worker)
    return {
        **run_document(fact),
        "super_steps": [_super_step(step, log, full=full) for step in log.line.super_steps],
        "forked": _forked(log),
        "parked": [{"from": iso(line.from_at), "until": time(line.until_at)} for line in log.stretches()],
        "waits": [wait_document(wait, log.around) for wait in fact.waits],
        "questions": [asked_document(row) for row in log.questions.values()],
        "children": [child_document(child) for child in log.children.values()],
        "effects": [open_effect_document(row) for row in log.effects],
        "deliveries": [handed_document(row) for row in log.deliveries],
        "usage": [usage_document(info(UsageBy.RUN, row)) for row in log.usage],
        "workers": [_involved(log.workers[number], log) for number in sorted(involved) if number in log.workers],
    }


def _forked(log: RunLog) -> Document | None:
    """Where it was forked, and how many records it took over. Of which run is not recorded."""
    line = log.forked()
    return None if line is None else {"super_step": line.super_step, "records": line.count}


def _involved(worker: Worker, log: RunLog) -> Document:
    return {**worker_document(worker), "silent": is_silent(worker, silent=log.silent, now_us=log.now_us)}


def _super_step(step: SuperStep, log: RunLog, *, full: bool) -> Document:
    boundary = step.boundary
    document: Document = {
        "super_step": step.number,
        "began_at": time(boundary.ended_at if boundary else None),
        "steps": [_line(line, log, full=full) for line in step.lines if isinstance(line, Checkpoint | Try)],
    }
    if full:
        document["arguments"] = log.arguments(boundary) if boundary else None
    return document


def _line(line: Checkpoint | Try, log: RunLog, *, full: bool) -> Document:
    row = line.row if isinstance(line, Try) else line
    document: Document = {
        "key": row.key,
        "kind": (log.verb(row) if isinstance(row, Checkpoint) else Verb.STEP).value,
        "attempt": row.attempt,
        "state": _line_state(line),
        "recorded": isinstance(row, Checkpoint),
        "worker": worker_id(row.worker) if isinstance(row, Checkpoint) else log.holder(row.fence) or None,
        "fence": row.fence,
        "started_at": iso(row.started_at),
        "ended_at": time(row.ended_at),
        "duration_s": None if row.ended_at is None else (row.ended_at - row.started_at) / 1e6,
        "size_bytes": log.size(row.payload) if isinstance(row, Checkpoint) else None,
        "error": error_document(_line_error(row, log)),
    }
    if full and isinstance(row, Checkpoint):
        document["value"] = None if row.failed else log.value(row.payload)
    return document


def _line_state(line: Checkpoint | Try) -> str:
    if isinstance(line, Try):
        return "running" if line.open else "failed" if line.row.error is not None else "cut off"
    return "failed" if line.failed else "ok"


def _line_error(row: Checkpoint | Attempt, log: RunLog) -> ErrorInfo | None:
    if isinstance(row, Checkpoint):
        return log.error(row.payload) if row.failed else None
    return None if row.error is None else log.error(row.error)


def worker_document(worker: Worker) -> Document:
    """A worker."""
    return {
        "worker": worker_id(worker.id),
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "deployment": worker.deployment,
        "state": worker.state.value,
        "idle": worker.idle,
        "running": worker.running,
        "started_at": iso(worker.started_at),
        "lease_until": iso(worker.lease_until),
        "ended_at": time(worker.ended_at),
    }


def thread_document(thread: Thread, *, head: Run | None) -> Document:
    """A thread, as its listing shows it."""
    return {
        "thread_id": thread.thread_id,
        "agent": thread.agent,
        "state": agent_state(head).value,
        "head": None if thread.head is None else run_id(thread.head),
        "depth": thread.depth,
        "runs_total": thread.last_ordinal,
        "created_at": iso(thread.created_at),
    }


def thread_page_document(
    thread: Thread, *, head: Run | None, facts: Facts, boundaries: Sequence[Checkpoint], mail: Mail
) -> Document:
    """A thread with what waits there, its newest runs and boundaries."""
    return {
        **thread_document(thread, head=head),
        "snapshot": None
        if thread.snapshot_run is None
        else {"run_id": run_id(thread.snapshot_run), "super_step": thread.snapshot_step},
        "mailbox": mail.waiting,
        "dead_letters": mail.dead,
        "questions": [asked_document(row) for row in mail.questions],
        "runs": [run_document(fact) for fact in facts.items],
        "checkpoints": [_boundary(row) for row in boundaries],
    }


def _boundary(row: Checkpoint) -> Document:
    return {
        "run_id": run_id(row.run),
        "super_step": row.super_step,
        "kind": "ended" if row.kind is Kind.ENDED else "boundary",
        "failed": row.failed,
        "at": iso(row.ended_at),
        "has_state": row.state is not None,
    }
