"""Rules about the logs alone."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

from perdure.core.records import Kind, run_id
from perdure.core.states import TERMINAL
from perdure.testing.chaos.books import one_writer_after_the_other
from perdure.testing.chaos.case import Case, Found, shown


def key_twice(case: Case) -> Found:
    for run, log in case.books.logs.items():
        for (super_step, key), count in Counter((row.super_step, row.key) for row in log).items():
            if count > 1:
                rows = [row for row in log if (row.super_step, row.key) == (super_step, key)]
                yield f"{run_id(run)} {super_step} {key!r}", map(shown, rows)


def gap(case: Case) -> Found:
    for run, log in case.books.logs.items():
        ended = case.books.runs[run].state in TERMINAL
        kinds = [row.kind for row in log if row.kind is not Kind.STEP]
        marks = [row.super_step for row in log if row.kind is not Kind.STEP]
        wanted = [Kind.BOUNDARY] * (len(kinds) - ended) + [Kind.ENDED] * ended
        if not kinds or marks != list(range(1, len(marks) + 1)) or kinds != wanted:
            yield f"{run_id(run)}: its super-steps", map(shown, log)
        steps = [row for row in log if row.kind is Kind.STEP]
        for super_step, rows in groupby(steps, key=lambda row: row.super_step):
            seqs = [row.seq for row in rows]
            if seqs != list(range(1, len(seqs) + 1)):
                yield f"{run_id(run)} super-step {super_step}", map(shown, log)


def fences(case: Case) -> Found:
    for run, log in case.books.logs.items():
        in_order = [row.fence for row in log if not (row.kind is Kind.BOUNDARY and row.super_step == 1)]
        grows = all(before <= after for before, after in pairwise([*in_order, case.books.runs[run].fence]))
        if not grows or not one_writer_after_the_other(log):
            yield run_id(run), map(shown, log)
