"""Reconciling: the recorder's account against the store's books, rule by rule. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from perdure.testing.chaos.case import Case, Found, Rule, Violation
from perdure.testing.chaos.rules import bodies, logs, starts

RULES: Final[dict[Rule, Callable[[Case], Found]]] = {
    Rule.START_LOST: starts.start_lost,
    Rule.TWO_RUNS: starts.two_runs,
    Rule.UNASKED: starts.unasked,
    Rule.REFUSED: starts.refused,
    Rule.OTHER_INPUT: starts.other_input,
    Rule.EARLY: starts.early,
    Rule.UNFINISHED: starts.unfinished,
    Rule.HELD: starts.held,
    Rule.UNTOLD: starts.untold,
    Rule.RESULT: starts.result,
    Rule.STATE: starts.state,
    Rule.NO_BODY: bodies.no_body,
    Rule.NO_RECORD: bodies.no_record,
    Rule.AFTER_RECORD: bodies.after_record,
    Rule.TWICE: bodies.twice,
    Rule.REPEATED: bodies.repeated,
    Rule.KEY_TWICE: logs.key_twice,
    Rule.GAP: logs.gap,
    Rule.FENCES: logs.fences,
    Rule.TWO_OWNERS: bodies.two_owners,
    Rule.DEPLOYMENT: bodies.deployment,
    Rule.FELL: starts.fell,
}


def reconcile(case: Case) -> list[Violation]:
    """All violations, in the order of the rules."""
    return [Violation(rule, where, tuple(rows)) for rule, find in RULES.items() for where, rows in find(case)]
