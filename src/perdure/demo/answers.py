"""The answers as files: one Markdown page each, with its sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from perdure.runtime.info import RunInfo

SLUG_CHARS: Final = 60


def write_answers(folder: Path, runs: list[RunInfo]) -> int:
    """Write a page for each completed run; returns how many pages there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        number = run.thread_id.rpartition("/")[2]
        (folder / f"{number}-{slug(run.result['question'])}.md").write_text(page(run), "utf-8")
    return len(list(folder.glob("*.md")))


def page(run: RunInfo) -> str:
    """Question, answer, sources, and where it came from."""
    result = run.result
    sources = "\n".join(f"{c.number}. {c.source} (`{c.passage}`)" for c in result["citations"]) or "None."
    receipt = result["receipt"]
    charged = "nothing" if receipt is None else f"{receipt.cents} cents, {receipt.receipt}"
    recovered = "" if not run.recoveries else f", taken over from a killed worker {run.recoveries} time(s)"
    return (
        f"# {result['question']}\n\n{result['answer']}\n\n## Sources\n\n{sources}\n\n---\n\n"
        f"Thread `{run.thread_id}`, run `{run.run_id}`{recovered}. Searched for: {'; '.join(result['queries'])}. "
        f"Charged: {charged}.\n"
    )


def slug(text: str) -> str:
    """A file name that still reads like the question."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:SLUG_CHARS].rstrip("-")
