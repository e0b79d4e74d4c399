"""`perdure deliveries`, and deliveries on the page of their run."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len

from perdure.cli.exits import Exit
from perdure.client.deliveries import DeliveryInfo
from tests.cli.conftest import Run
from tests.cli.traded import Traded


def document(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def listed(at_trade: Run, *arguments: str) -> list[str]:
    return [row["id"] for row in document(at_trade("deliveries", "list", "--json", *arguments))]


# -- the list -------------------------------------------------------------------------------------------------------


def test_the_outbox_holds_what_all_runs_have_handed_over_oldest_first(at_trade: Run, trade: Traded) -> None:
    rows = at_trade("deliveries", "list").stdout.splitlines()

    assert rows[0].split() == ["id", "state", "sink", "partition", "run", "tries", "when", "what"]
    assert [row.split()[:3] for row in rows[1:]] == [
        [trade.sent, "delivered", "invoices"], [trade.dead, "dead", "invoices"], [trade.tried, "queued", "mail"],
        [trade.held, "delivering", "mail"], [trade.behind, "queued", "mail"], [trade.bill, "queued", "bills"],
    ]  # fmt: skip
    assert '{"order": 7' in rows[1] and "HTTPStatusError: 503" in rows[2] and "ConnectError: refused" in rows[3]
    assert " in 5" in rows[3] and f"the bill of {trade.order}, completed" in rows[6]


def test_the_outbox_can_be_narrowed_and_paged(at_trade: Run, trade: Traded) -> None:
    assert listed(at_trade, "--state", "dead") == [trade.dead]
    assert listed(at_trade, "--sink", "mail", "--partition", "b") == [trade.held, trade.behind]
    assert listed(at_trade, "--run", trade.order) == listed(at_trade, "--tenant", "acme")
    assert listed(at_trade, "--thread-id", "topics") == [trade.tried, trade.held, trade.behind]
    assert listed(at_trade, "--bills") == listed(at_trade, "--key", "b1") == [trade.bill]
    assert trade.bill not in listed(at_trade, "--no-bills")
    assert listed(at_trade, "--limit", "1", "--after", trade.sent) == [trade.dead]
    assert f"more: --after {trade.dead}" in at_trade("deliveries", "list", "--limit", "2").stdout
    assert "more:" not in at_trade("deliveries", "list", "--limit", "6").stdout
    assert at_trade("deliveries", "list", "--state", "dead", "--sink", "mail").stdout == "no dead deliveries\n"
    assert at_trade("deliveries", "list", "--sink", "mial").stdout == (
        "no deliveries to sink 'mial' (did you mean mail?); there are: bills, invoices, mail\n"
    )
    assert at_trade("deliveries", "list", "--run", "r999").exit_code == Exit.NOT_FOUND


def test_a_page_that_is_not_the_last_says_how_many_wait_or_are_dead_further_on(at_trade: Run, trade: Traded) -> None:
    page = at_trade("deliveries", "list", "--limit", "1").stdout
    rest = at_trade("deliveries", "list", "--limit", "1", "--after", trade.tried).stdout

    assert page.endswith(f"more: --after {trade.sent}\nafter these: 1 dead (--state dead), 3 queued (--state queued)\n")
    assert rest.endswith("after these: 2 queued (--state queued)\n")
    assert "after these" not in at_trade("deliveries", "list", "--limit", "1", "--state", "queued").stdout


@pytest.mark.parametrize("columns", [80, 100])
def test_the_pages_fit_their_width(at_trade: Run, trade: Traded, columns: int) -> None:
    names = (trade.sent, trade.dead, trade.bill, trade.tried, trade.held, trade.behind)
    pages = [at_trade("deliveries", "show", name, columns=columns).stdout for name in names]
    pages += [at_trade("deliveries", "list", columns=columns).stdout]
    pages += [at_trade("runs", "show", trade.order, columns=columns).stdout]

    assert max(cell_len(line) for page in pages for line in page.splitlines()) <= columns


# -- one ------------------------------------------------------------------------------------------------------------


def test_a_delivery_as_json_has_the_fields_of_delivery_info(at_trade: Run, trade: Traded) -> None:
    shown = document(at_trade("deliveries", "show", trade.sent, "--json"))

    assert list(shown) == list(DeliveryInfo.__slots__)
    assert (shown["payload"], shown["state"], shown["bill"]) == ({"order": 7, "cents": 1_900}, "delivered", False)
    assert shown["settled_at"].endswith("Z")


def test_a_page_shows_all_that_is_known_of_a_delivery(at_trade: Run, trade: Traded) -> None:
    page = at_trade("deliveries", "show", trade.dead, columns=200).stdout

    assert page.startswith(f"{trade.dead}  to invoices  dead\n")
    assert f"{trade.order}, agent order" in page and "partition orders/7, as number 2" in page
    assert '"text": "a text that no column holds"' in page
    assert "503 Service Unavailable\nthe shop is closed\n" in page
    assert f"what to do: when its sink can take it, `perdure deliveries redeliver {trade.dead}`" in page


def test_a_bills_page_shows_what_it_says(at_trade: Run, trade: Traded) -> None:
    assert '"usd": "17.500000001"' in at_trade("deliveries", "show", trade.bill).stdout
    bill = document(at_trade("deliveries", "show", trade.bill, "--json"))["payload"]
    assert (bill["run_id"], bill["state"], bill["usage"]["tokens"]) == (trade.order, "completed", "12000")


def test_what_keeps_a_delivery_is_said(at_trade: Run, trade: Traded) -> None:
    def shown(name: str) -> str:
        return at_trade("deliveries", "show", name, columns=200).stdout

    tried = shown(trade.tried)
    due(trade)
    assert "next try" in tried and "what to do" not in tried
    assert "now by w" in shown(trade.held)
    assert "earlier ones of its lane (`perdure deliveries list --sink mail --partition b" in shown(trade.behind)
    assert "it is its turn" in shown(trade.bill) and "whose app has this sink" in shown(trade.bill)


@pytest.mark.parametrize(("name", "code", "said"), [("d99999", 3, "deliveries list"), ("e1", 2, "d42")])
def test_what_is_no_delivery_is_an_error_with_its_remedy(at_trade: Run, name: str, code: int, said: str) -> None:
    for verb in ("show", "redeliver"):
        result = at_trade("deliveries", verb, name)
        assert (result.exit_code, result.stdout) == (code, "") and said in result.stderr


# -- one that nobody takes -------------------------------------------------------------------------------------------


def due(trade: Traded, *ids: str, ago_s: float = 0.0) -> None:
    """These have been due for so long, and workers are alive, however long ago the file was made."""
    now = time.time_ns() // 1_000
    with closing(sqlite3.connect(trade.url.removeprefix("sqlite:///"))) as file, file:
        file.execute("update deliveries set due_at = ?, settled_at = ?", (now, now))
        file.execute("update workers set lease_until = ?", (now + 3_600_000_000,))
        for name in ids:
            at = now - int(ago_s * 1_000_000)
            file.execute("update deliveries set due_at = ? where id = ?", (at, int(name[1:])))


def without_workers(trade: Traded) -> None:
    with closing(sqlite3.connect(trade.url.removeprefix("sqlite:///"))) as file, file:
        file.execute("update workers set state = 'stopped', lease_until = 1, ended_at = 1")


def test_a_delivery_that_nobody_takes_says_how_long_it_is_overdue(at_trade: Run, trade: Traded) -> None:
    due(trade)
    just_now = at_trade("deliveries", "show", trade.bill, columns=200).stdout
    due(trade, trade.bill, ago_s=150)
    late = at_trade("deliveries", "show", trade.bill, columns=200).stdout

    assert "\ndue " in just_now and "overdue" not in just_now
    assert re.search(r"\ndue .*: 2 min \d\d s overdue", late)
    assert "what to do: no worker that is alive (`perdure workers list`) takes it: none has sink bills" in late
    assert "due 2 min ago" in at_trade("deliveries", "list").stdout
    without_workers(trade)
    alone = at_trade("deliveries", "show", trade.bill, columns=200).stdout
    assert "what to do: no worker is alive; start one whose app has sink bills: `perdure worker MODULE:APP`" in alone


def test_a_delivery_whose_turn_has_just_come_is_not_overdue(at_trade: Run, trade: Traded) -> None:
    """It was due for longer, behind another of its lane."""
    at_trade("deliveries", "redeliver", trade.dead)
    due(trade, trade.dead, ago_s=150)

    assert "overdue" not in at_trade("deliveries", "show", trade.dead, columns=200).stdout
    assert "overdue" not in at_trade("doctor", columns=200).stdout


def test_doctor_warns_of_deliveries_that_nobody_takes(at_trade: Run, trade: Traded) -> None:
    due(trade, trade.bill, trade.behind, trade.sent, ago_s=150)
    result = at_trade("doctor", columns=300)

    assert result.exit_code == 1
    assert re.search(
        r"1 delivery due for more than a minute, the oldest for 2 min \d\d s \(to bills\): no worker", result.stdout
    )
    assert "no worker that is alive takes them (`perdure deliveries list --state queued`)" in result.stdout
    without_workers(trade)
    assert "(to bills): no worker is alive; start one: `perdure worker" in at_trade("doctor", columns=300).stdout


def test_doctor_sees_what_nobody_takes_behind_any_backlog(at_trade: Run, trade: Traded) -> None:
    due(trade)
    with closing(sqlite3.connect(trade.url.removeprefix("sqlite:///"))) as file, file:
        for first, sink, lane, count in ((10_000, "queue", "'one'", 2_000), (20_000, "hidden", "n", 2)):
            file.execute(
                f"""with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {count})
                insert into deliveries (
                  id, run, fence, seq, bill, ready, due_at, created_at, state, sink, partition, key, payload
                )
                select {first} + n, d.run, d.fence, n, 0, {lane} <> 'one', 1, 1, 'queued', '{sink}', {lane},
                  'k' || ({first} + n), d.payload
                from numbers, deliveries d where d.id = ?""",
                (int(trade.sent[1:]),),
            )

    assert "2 deliveries due for more than a minute" in at_trade("doctor", columns=300).stdout
    assert "(to hidden)" in at_trade("doctor", columns=300).stdout


# -- sending on -----------------------------------------------------------------------------------------------------


def test_a_dead_delivery_is_sent_on_at_the_end_of_its_lane(at_trade: Run, trade: Traded) -> None:
    result = at_trade("deliveries", "redeliver", trade.dead)

    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        result.stdout == f"{trade.dead} is queued again, as number 3 of its lane (sink invoices, partition orders/7)\n"
    )
    again = at_trade("deliveries", "redeliver", trade.dead)
    assert again.exit_code == Exit.CONFLICT and "is queued" in again.stderr


def test_of_several_that_are_named_none_is_sent_on_where_one_is_not_dead(at_trade: Run, trade: Traded) -> None:
    result = at_trade("deliveries", "redeliver", trade.dead, trade.sent)

    assert (result.exit_code, result.stdout) == (Exit.CONFLICT, "") and "its sink has taken it" in result.stderr
    assert listed(at_trade, "--state", "dead") == [trade.dead]
    (redelivered,) = document(at_trade("deliveries", "redeliver", trade.dead, trade.dead, "--json"))
    assert (redelivered["id"], redelivered["state"], redelivered["attempts"]) == (trade.dead, "queued", 0)


def test_all_dead_ones_are_sent_on_and_counted(at_trade: Run, trade: Traded) -> None:
    assert document(at_trade("deliveries", "redeliver", "--all", "--sink", "mail", "--json")) == {"redelivered": 0}
    assert at_trade("deliveries", "redeliver", "--all", "--tenant", "acme").stdout == "1 dead delivery sent on\n"
    assert at_trade("deliveries", "redeliver", "--all").stdout == "no dead deliveries\n"
    assert (
        "no deliveries to sink 'mial' (did you mean mail?)"
        in at_trade("deliveries", "redeliver", "--all", "--sink", "mial").stdout
    )
    for listing in (
        ("deliveries", "redeliver", "--all", "--run"),
        ("effects", "list", "--run"),
        ("interrupts", "list", "--run"),
    ):
        assert at_trade(*listing, "r999").exit_code == Exit.NOT_FOUND
    assert at_trade("runs", "list", "--parent", "r999").exit_code == Exit.NOT_FOUND
    assert listed(at_trade, "--state", "dead") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say --all"),
        (("d1", "--all"), "say --all"),
        (("d1", "--sink", "mail"), "--sink goes with --all"),
        (("--all", "--run", "d1"), "r12"),
    ],
)
def test_what_makes_no_sense_is_refused(at_trade: Run, words: tuple[str, ...], said: str) -> None:
    result = at_trade("deliveries", "redeliver", *words)

    assert result.exit_code == Exit.USAGE and said in result.stderr


# -- around it ------------------------------------------------------------------------------------------------------


def test_a_runs_page_counts_its_deliveries_and_says_what_it_has_used(at_trade: Run, trade: Traded) -> None:
    page = at_trade("runs", "show", trade.order).stdout
    shown = document(at_trade("runs", "show", trade.order, "--json"))

    assert f"1 queued, 1 delivered, 1 dead: perdure deliveries list --run {trade.order}" in page
    assert "12,000 tokens, 17.500000001 usd" in page
    assert [(row["id"], row["state"]) for row in shown["deliveries"]] == [
        (trade.sent, "delivered"), (trade.dead, "dead"), (trade.bill, "queued"),
    ]  # fmt: skip
    assert [(row["name"], row["quantity"]) for row in shown["usage"]] == [("tokens", "12000"), ("usd", "17.500000001")]


def test_doctor_counts_dead_deliveries(at_trade: Run) -> None:
    page = at_trade("doctor", columns=200).stdout

    assert "1 dead delivery: `perdure deliveries list --state dead`" in page
