"""The same pages from a Postgres store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli
from tests.cli import asked, traded
from tests.cli.world import make
from tests.support import postgres

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A store in which something of everything has happened."""
    url = postgres.shared().fresh_url()
    asyncio.run(make(url))
    yield url


def documents(url: str, *command: str) -> Any:
    result = CliRunner().invoke(cli, [*command, "--json", "--store", url])
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def test_runs_threads_and_workers_are_listed(url: str) -> None:
    runs = {run["run_id"]: run["state"] for run in documents(url, "runs", "list")}

    assert runs == {
        "r1": "completed", "r2": "failed", "r3": "held", "r4": "queued", "r5": "queued", "r6": "running",
        "r7": "queued",
    }  # fmt: skip
    assert len(documents(url, "threads", "list")) == 5
    assert [worker["state"] for worker in documents(url, "workers", "list", "--all")] == ["dead", "alive"]


def test_a_timeline_and_a_state_are_shown(url: str) -> None:
    run = documents(url, "runs", "show", "r1", "--full")
    thread = documents(url, "threads", "show", "topics/7", "--state")

    assert [len(super_step["steps"]) for super_step in run["super_steps"]] == [5, 1]
    assert run["result"] == {"answer": "Rayleigh scattering", "sources": ["a", "c"]}
    assert thread["value"] == {"asked": 2, "notes": ["blue", "wavelength", "scattering 🌈"]}


def test_the_doctor_finds_the_server_well(url: str) -> None:
    checks = documents(url, "doctor")

    assert {"driver", "store", "schema", "clock", "fsync"} <= {check["what"] for check in checks}
    assert all(check["well"] for check in checks)


def test_a_store_is_made_by_migrate() -> None:
    fresh = postgres.shared().fresh_url()

    made = documents(fresh, "migrate")
    again = documents(fresh, "migrate")

    assert made["before"] == 0 and made["after"] == again["before"] == again["after"]


def test_questions_messages_and_waits_are_shown_and_ended() -> None:
    fresh = postgres.shared().fresh_url()
    there = asyncio.run(asked.make(fresh))

    inbox = documents(fresh, "interrupts", "list")
    won = documents(fresh, "resume", there.approve, '{"buy": true}', "--by", "alice")
    sent = documents(fresh, "messages", "send", "mail", '{"item": "tea"}', "--label", "Order")
    page = documents(fresh, "runs", "show", there.order)
    cancelled = documents(fresh, "cancel", there.boss)
    forked = documents(fresh, "fork", "orders/7", "--key", "start:child")

    assert [row["id"] for row in inbox][:2] == [there.approve, there.free]
    assert (won["answered_by"], won["answer"]) == ("alice", {"buy": True})
    assert documents(fresh, "messages", "list", "mail")[-1]["id"] == sent["id"]
    assert [row["id"] for row in documents(fresh, "messages", "dead")] == [there.dead]
    assert (page["state"], [child["run_id"] for child in page["children"]]) == ("queued", [there.child])
    assert cancelled["cancel"] is not None and forked["state"] == "queued"
    assert documents(fresh, "runs", "show", there.worker)["state"] == "cancelled"


def test_the_outbox_usage_and_budgets_are_shown_and_changed() -> None:
    fresh = postgres.shared().fresh_url()
    there = asyncio.run(traded.make(fresh))

    dead = documents(fresh, "deliveries", "list", "--state", "dead", "--tenant", "acme")
    bill = documents(fresh, "deliveries", "show", there.bill)["payload"]
    redelivered = documents(fresh, "deliveries", "redeliver", "--all")
    usage = documents(fresh, "usage", "--by", "tenant", "--name", "usd")
    page = documents(fresh, "runs", "show", there.order)
    raised = documents(fresh, "budgets", "set", "agent:research", "--steps", "9", "--by", "ann")
    sent = [documents(fresh, "messages", "send", "topics", "1", "--key", "k")["id"] for _ in range(2)]

    assert ([row["id"] for row in dead], redelivered) == ([there.dead], {"redelivered": 1})
    assert bill["usage"] == {"tokens": "12000", "usd": "17.500000001"}
    assert [(row["group"], row["quantity"]) for row in usage] == [("acme", "17.500000001")]
    assert [row["state"] for row in page["deliveries"]] == ["delivered", "queued", "queued"]
    assert (raised["limits"]["steps"], raised["reserved"]["steps"], raised["rev"]) == (9, 1, 2)
    assert documents(fresh, "interrupts", "show", there.question)["state"] == "withdrawn"
    assert documents(fresh, "runs", "show", there.asking)["state"] == "queued"
    assert sent[0] == sent[1]
