"""The report on a page, and its numbers for other programs."""

from __future__ import annotations

import shlex
import textwrap
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from perdure.demo.promise import Promise
from perdure.demo.reconciliation import Accounts
from perdure.demo.report import Evidence, Recovery
from perdure.demo.scene import Performance, Script
from perdure.demo.screen import NAME_CHARS

EXAMPLE_CHARS: Final = 500

WITNESSES: Final = "What happened, by the store, the step bodies' side log and the service's file"


def print_report(out: Console, script: Script, performance: Performance) -> None:
    """Promises with their signs, the times, an example, and where to look further."""
    report = performance.report
    out.print(Text(WITNESSES, style="bold"))
    out.print()
    for promise in report.promises:
        print_promise(out, promise)
    for line in [*times(report.recovery), *waits(performance.evidence), *retries(report.retried)]:
        print_point(out, "·", "", line)
    out.print()
    print_example(out, performance)
    print_where(out, script, performance)


def print_promise(out: Console, promise: Promise) -> None:
    """Its sign and its sentence."""
    print_point(out, "✓" if promise.holds else "✗", "bold green" if promise.holds else "bold red", promise.text)


def print_point(out: Console, sign: str, style: str, text: str) -> None:
    """A sign and its sentence, wrapped beside it."""
    lines = textwrap.wrap(text, max(20, out.width - 4), break_long_words=False)
    out.print(Text.assemble("  ", (sign, style), " ", "\n    ".join(lines)), soft_wrap=True)


def times(recovery: Recovery) -> list[str]:
    """The recovery in words; empty where nobody was killed."""
    if recovery.running_s is None or recovery.completed_s is None:
        return []
    noticed = "" if recovery.noticed_s is None else f"death noticed after {recovery.noticed_s:.2f} s, "
    return [
        f"time to recover: {noticed}all its runs at work again after {recovery.running_s:.2f} s, "
        f"all answered after {recovery.completed_s:.2f} s"
    ]


def waits(evidence: Evidence) -> list[str]:
    """What the killed worker's lease cost; empty where nobody had to wait for its end."""
    accounts = evidence.accounts
    if accounts is None or not accounts.waited:
        return []
    return [
        f"{accounts.waited} of them waited until the killed worker's lease was over before the service was asked: "
        "until then that worker might still have sent the charge"
    ]


def retries(count: int) -> list[str]:
    return [f"tries that failed and were made again by the steps' retry policy: {count}"] if count else []


def print_example(out: Console, performance: Performance) -> None:
    """One of the answers that had to survive."""
    survivors = [run for run in performance.results if run.recoveries] or performance.results
    if not survivors:
        return
    result = survivors[0].result
    out.print(Text.assemble(("For example, ", "dim"), (result["question"], "bold")), soft_wrap=True)
    answer = result["answer"] if len(result["answer"]) <= EXAMPLE_CHARS else result["answer"][:EXAMPLE_CHARS] + "…"
    sources = "; ".join(f"[{citation.number}] {citation.source}" for citation in result["citations"])
    for text, style in ((answer, ""), (sources, "dim")):
        lines = textwrap.wrap(text, max(20, out.width - 4), break_long_words=False)
        out.print(Text("    " + "\n    ".join(lines), style=style), soft_wrap=True)
    out.print()


def print_where(out: Console, script: Script, performance: Performance) -> None:
    """Where everything is."""
    run = next((run for run in performance.results if run.recoveries), None)
    rows = [("answers", str(script.folder / "answers")), ("logs", str(script.folder))]
    if run is not None:
        rows.append(("look at", f"perdure runs show {run.run_id} --store {shlex.quote(script.store_shown)}"))
    for name, value in rows:
        out.print(Text.assemble((name.ljust(NAME_CHARS), "dim"), value), soft_wrap=True)
    if not performance.report.holds:
        out.print(Text("\nA promise was broken; the folder has all the evidence.", style="bold red"))


def numbers(performance: Performance) -> dict[str, Any]:
    """The report as JSON."""
    report, evidence = performance.report, performance.evidence
    return {
        "holds": report.holds,
        "promises": [{"holds": promise.holds, "text": promise.text} for promise in report.promises],
        "asked": evidence.asked,
        "taken_over": len(evidence.taken_over),
        "steps": len(evidence.steps),
        "bodies": len(evidence.executions),
        "repeated": len(evidence.repeated),
        "retried": report.retried,
        **charges(evidence.accounts),
        "noticed_s": report.recovery.noticed_s,
        "running_s": report.recovery.running_s,
        "completed_s": report.recovery.completed_s,
    }


def charges(accounts: Accounts | None) -> dict[str, int]:
    """How often what was charged."""
    if accounts is None:
        return {}
    return {
        "charges": len(accounts.charges),
        "cents": sum(line.cents for line in accounts.charges),
        "effects": len(accounts.effects),
        "unknown": len(accounts.unknown),
        "answers_lost": len(accounts.lost),
    }
