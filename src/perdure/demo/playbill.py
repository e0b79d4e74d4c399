"""The report on a page, and its numbers for other programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from perdure.demo.report import Recovery
from perdure.demo.scene import Performance, Script


def print_report(out: Console, script: Script, performance: Performance) -> None:
    """Promises with their signs, the times, an example, and where to look further."""
    report = performance.report
    out.print(Text("What happened, computed from the store's rows and the step bodies' side log", style="bold"))
    out.print()
    for promise in report.promises:
        sign = Text("✓ ", style="bold green") if promise.holds else Text("✗ ", style="bold red")
        out.print(Padding(sign.append(promise.text, style="not bold default"), (0, 0, 0, 2)))
    for line in [*times(report.recovery), *retries(report.retried)]:
        out.print(Padding(Text(f"· {line}", style="default"), (0, 0, 0, 2)))
    out.print()
    print_example(out, performance)
    print_where(out, script, performance)


def times(recovery: Recovery) -> list[str]:
    """The recovery in words; empty where nobody was killed."""
    if recovery.running_s is None or recovery.completed_s is None:
        return []
    noticed = "" if recovery.noticed_s is None else f"death noticed after {recovery.noticed_s:.2f} s, "
    return [
        f"time to recover: {noticed}all its runs at work again after {recovery.running_s:.2f} s, "
        f"all answered after {recovery.completed_s:.2f} s"
    ]


def retries(count: int) -> list[str]:
    return [f"tries that failed and were made again by the steps' retry policy: {count}"] if count else []


def print_example(out: Console, performance: Performance) -> None:
    """One of the answers that had to survive."""
    survivors = [run for run in performance.results if run.recoveries] or performance.results
    if not survivors:
        return
    result = survivors[0].result
    out.print(Text.assemble(("For example  ", "dim"), (result["question"], "bold")))
    text = result["answer"] if len(result["answer"]) <= 500 else result["answer"][:499] + "…"
    out.print(Padding(Text(text), (0, 0, 0, 4)))
    sources = "; ".join(f"[{c.number}] {c.source}" for c in result["citations"])
    out.print(Padding(Text(sources, style="dim"), (0, 0, 1, 4)))


def print_where(out: Console, script: Script, performance: Performance) -> None:
    """Where everything is."""
    run = next((run for run in performance.results if run.recoveries), None)
    out.print(Text.assemble(("answers    ", "dim"), str(script.folder / "answers")), soft_wrap=True)
    out.print(Text.assemble(("logs       ", "dim"), str(script.folder)), soft_wrap=True)
    if run is not None:
        look = f"perdure runs show {run.run_id} --store {script.store_shown}"
        out.print(Text.assemble(("look at    ", "dim"), look), soft_wrap=True)
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
        "noticed_s": report.recovery.noticed_s,
        "running_s": report.recovery.running_s,
        "completed_s": report.recovery.completed_s,
    }
