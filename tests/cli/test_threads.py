"""`perdure threads` and `perdure workers`."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.cli.world import LONG


def test_threads_are_listed_with_what_they_do(perdure: Run) -> None:
    threads = json.loads(perdure("threads", "list", "--json").stdout)

    assert {thread["thread_id"]: (thread["state"], thread["head"], thread["depth"]) for thread in threads} == {
        "topics/7": ("idle", None, 0),
        "stuck": ("processing", "r3", 2),
        LONG: ("processing", "r5", 1),
        "busy": ("processing", "r6", 1),
        "gpu-thread": ("processing", "r7", 1),
    }


def test_a_list_of_threads_can_be_narrowed_and_paged(perdure: Run) -> None:
    first = json.loads(perdure("threads", "list", "--json", "--limit", "2").stdout)
    rest = json.loads(perdure("threads", "list", "--json", "--after", first[-1]["thread_id"]).stdout)
    of_agent = json.loads(perdure("threads", "list", "--json", "--agent", "research").stdout)

    assert [thread["thread_id"] for thread in [*first, *rest]] == ["gpu-thread", "busy", LONG, "stuck", "topics/7"]
    assert [thread["thread_id"] for thread in of_agent] == ["stuck", "topics/7"]


def test_a_long_thread_id_is_listed_whole(perdure: Run) -> None:
    rows = [line.split("  ")[0].strip() for line in perdure("threads", "list").stdout.splitlines()]

    assert LONG in "".join(rows)


def test_a_thread_shows_its_queue_and_its_super_steps(perdure: Run) -> None:
    page = perdure("threads", "show", "topics/7").stdout

    assert page.startswith("topics/7  research  idle")
    assert "2 runs so far, 0 unfinished" in page
    assert "as of r1, super-step 3" in page
    assert page.index("r2") < page.index("recovered 1×")
    assert page.count("saved") == 2


def test_a_queue_says_what_each_run_waits_for(perdure: Run) -> None:
    page = perdure("threads", "show", "stuck").stdout

    assert "behind r3, held" in page and "held: diverged" in page


def test_a_threads_state_is_decoded_on_request(perdure: Run) -> None:
    state = {"asked": 2, "notes": ["blue", "wavelength", "scattering 🌈"]}

    page = perdure("threads", "show", "topics/7", "--state").stdout
    document = json.loads(perdure("threads", "show", "topics/7", "--state", "--json").stdout)

    assert json.dumps(state, ensure_ascii=False) in page
    assert document["value"] == state
    assert document["snapshot"] == {"run_id": "r1", "super_step": 3}
    assert [run["run_id"] for run in document["runs"]] == ["r2", "r1"]
    assert [(row["run_id"], row["super_step"], row["kind"]) for row in document["checkpoints"]] == [
        ("r2", 2, "ended"),
        ("r2", 1, "boundary"),
        ("r1", 3, "ended"),
        ("r1", 2, "boundary"),
        ("r1", 1, "boundary"),
    ]


def test_a_thread_without_a_state_has_none(perdure: Run) -> None:
    assert json.loads(perdure("threads", "show", "busy", "--state", "--json").stdout)["value"] is None


def test_workers_are_listed_with_what_they_hold(perdure: Run) -> None:
    alive = json.loads(perdure("workers", "list", "--json").stdout)
    everyone = json.loads(perdure("workers", "list", "--json", "--all").stdout)

    assert [(worker["worker"], worker["name"], worker["state"], worker["running"]) for worker in everyone] == [
        ("w10", "alpha", "dead", 0),
        ("w11", "beta", "alive", 1),
    ]
    assert alive == everyone[1:]
    assert "min" in perdure("workers", "list").stdout
