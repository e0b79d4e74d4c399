"""`perdure usage`."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len

from perdure.cli import usage
from perdure.cli.exits import Exit
from perdure.client.usage import UsageInfo
from tests.cli.conftest import Run
from tests.cli.traded import Traded


def document(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def sums(at_trade: Run, *arguments: str) -> list[tuple[str, str, str]]:
    rows = document(at_trade("usage", "--json", *arguments))
    return [(row["group"], row["name"], row["quantity"]) for row in rows]


def test_usage_is_summed_by_tenant_agent_run_and_day(at_trade: Run, trade: Traded) -> None:
    assert sums(at_trade, "--by", "tenant") == [
        ("", "tokens", "5.5"), ("acme", "tokens", "12000"), ("acme", "usd", "17.500000001"),
    ]  # fmt: skip
    assert [row[0] for row in sums(at_trade, "--by", "agent", "--name", "tokens")] == ["order", "research"]
    assert [row[0] for row in sums(at_trade, "--by", "run", "--name", "tokens")] == [trade.order, trade.research]
    (day, _, tokens), _ = sums(at_trade, "--by", "day")
    assert day == datetime.fromisoformat(day).date().isoformat() and tokens == "12005.5"


def test_a_page_is_a_table_of_exact_numbers(at_trade: Run) -> None:
    rows = [line.split("  ") for line in at_trade("usage", "--by", "tenant").stdout.splitlines()]

    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["tenant", "name", "quantity", "entries"], ["no tenant", "tokens", "5.5", "2"],
        ["acme", "tokens", "12,000", "1"], ["acme", "usd", "17.500000001", "1"],
    ]  # fmt: skip


def test_usage_can_be_narrowed(at_trade: Run, trade: Traded) -> None:
    today = datetime.now(UTC).date()
    yesterday, tomorrow = today - timedelta(days=1), today + timedelta(days=2)

    assert sums(at_trade, "--by", "tenant", "--tenant", "acme", "--name", "usd") == [("acme", "usd", "17.500000001")]
    assert sums(at_trade, "--by", "run", "--run", trade.research) == [(trade.research, "tokens", "5.5")]
    assert sums(at_trade, "--by", "agent", "--agent", "research") == [("research", "tokens", "5.5")]
    assert len(sums(at_trade, "--by", "tenant", "--since", f"{yesterday}", "--until", f"{tomorrow}")) == 3
    assert at_trade("usage", "--by", "tenant", "--until", f"{yesterday}").stdout == "nothing was used\n"


def test_a_page_says_where_the_next_one_begins(at_trade: Run) -> None:
    first = at_trade("usage", "--by", "tenant", "--limit", "1")

    assert first.stdout.splitlines()[-1] == "more: --after '' tokens"
    assert sums(at_trade, "--by", "tenant", "--limit", "1", "--after", "", "tokens") == [("acme", "tokens", "12000")]
    assert "more" not in at_trade("usage", "--by", "tenant", "--limit", "3").stdout


def test_where_nothing_is_found_a_name_that_is_not_there_is_told(at_trade: Run, trade: Traded) -> None:
    def said(*words: str) -> str:
        return at_trade("usage", "--by", "run", *words).stdout

    assert said("--name", "token") == "no usage of 'token' (did you mean tokens?); there are: tokens, usd\n"
    assert said("--tenant", "acne") == "no usage of tenant 'acne' (did you mean acme?); there are: acme\n"
    assert said("--agent", "reserch").startswith("no usage of agent 'reserch' (did you mean research?)")
    assert said("--tenant", "acme", "--agent", "research") == "nothing was used\n"
    assert document(at_trade("usage", "--by", "run", "--name", "token", "--json")) == []
    missing = at_trade("usage", "--by", "run", "--run", "r999")
    assert (missing.exit_code, missing.stdout) == (Exit.NOT_FOUND, "") and "there is no run r999" in missing.stderr


def test_csv_has_every_row_whatever_a_page_holds(at_trade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "LIST_ROWS_MAX", 2)

    rows = list(csv.reader(io.StringIO(at_trade("usage", "--by", "tenant", "--csv").stdout)))

    assert rows == [
        ["tenant", "name", "quantity", "entries"], ["", "tokens", "5.5", "2"], ["acme", "tokens", "12000", "1"],
        ["acme", "usd", "17.500000001", "1"],
    ]  # fmt: skip
    assert len(at_trade("usage", "--by", "tenant", "--csv", "--limit", "1").stdout.splitlines()) == 2


def test_a_sum_as_json_has_the_fields_of_usage_info(at_trade: Run) -> None:
    (row, *_) = document(at_trade("usage", "--by", "tenant", "--json"))

    assert list(row) == list(UsageInfo.__slots__)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_page_fits_its_width(at_trade: Run, columns: int) -> None:
    page = at_trade("usage", "--by", "day", columns=columns).stdout

    assert max(cell_len(line) for line in page.splitlines()) <= columns


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--by"),
        (("--by", "month"), "'month'"),
        (("--by", "run", "--run", "7"), "r12"),
        (("--by", "run", "--csv", "--json"), "two formats"),
        (
            ("--by", "run", "--since", "yesterday"),
            "--since 'yesterday' is neither a day nor a time; give a day (2026",
        ),
        (("--by", "run", "--until", "2026-13-01"), "--until '2026-13-01' is neither a day nor a time"),
        (("--by", "run", "--since", "2026-11-01 at nine"), "--since '2026-11-01 at nine' is neither"),
        (
            ("--by", "run", "--since", "2026-11-02", "--until", "2026-11-01"),
            "until (2026-11-01) is not after since (2026",
        ),
        (("--by", "day", "--after", "yesterday", "usd"), "days look like 2026-11-30"),
        (("--by", "run", "--since", "2026-11-01T09:00"), "time zone"),
    ],
)
def test_what_makes_no_sense_is_refused(at_trade: Run, words: tuple[str, ...], said: str) -> None:
    result = at_trade("usage", *words)

    assert result.exit_code == Exit.USAGE and said in result.stderr
    assert not any(word in result.stderr for word in ("isoformat", "datetime", "ZoneInfo", "tz=", "timedelta"))
