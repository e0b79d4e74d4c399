"""The checker is checked: each rule finds its violation, planted in evidence that is sound otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.chaos.case import Rule
from perdure.testing.chaos.reconcile import RULES
from tests.chaos.evidence import FAILED, FAN, LATER, LEDGER, SEQUENCE, Evidence, leave_evidence
from tests.support.children import run_child


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with evidence that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("sound")
    assert run_child(leave_evidence, folder) == 0
    return folder


@pytest.fixture
def evidence(sound: Path, tmp_path: Path) -> Evidence:
    """A copy of it."""
    shutil.copytree(sound, tmp_path / "evidence")
    return Evidence(tmp_path / "evidence")


def test_sound_evidence_breaks_no_rule(evidence: Evidence) -> None:
    case = evidence.case()

    assert evidence.broken() == set()
    assert len(case.books.runs) == 5 and len(case.records) > 20 and case.repeats == []


def test_a_body_that_a_dead_worker_had_in_flight_may_run_again(evidence: Evidence) -> None:
    dead_worker(evidence, "dead")
    began_before(evidence)

    case = evidence.case()

    assert evidence.broken() == set()
    assert (len(case.repeats), case.in_flight) == (1, 1)


def dead_worker(evidence: Evidence, state: str) -> None:
    evidence.sql(
        "insert into workers (id, name, host, pid, deployment, state, started_at, lease_until) "
        "values (99999, 'w', 'h', 1, 'd', :state, 0, 0)",
        state=state,
    )


def began_before(evidence: Evidence) -> None:
    """Another worker had begun a body under a lower fence."""
    evidence.tell(**evidence.last("began", run=evidence.run(SEQUENCE)) | {"fence": 0, "worker": 99999})


def no_constraints(evidence: Evidence) -> None:
    """Let the log take a key twice."""
    evidence.sql("create table copies as select * from checkpoints")
    evidence.sql("drop table checkpoints")
    evidence.sql("alter table copies rename to checkpoints")


# -- what is planted ---------------------------------------------------------------------------------------------------


def start_lost(evidence: Evidence) -> None:
    evidence.sql("delete from runs where id = :run", run=evidence.run(SEQUENCE))


def two_runs(evidence: Evidence) -> None:
    evidence.tell("started", key=SEQUENCE, run=evidence.run(FAN))


def unasked(evidence: Evidence) -> None:
    evidence.forget("asked", key=SEQUENCE)


def refused(evidence: Evidence) -> None:
    evidence.tell("refused", key=LEDGER, error="ThreadBusy")


def other_input(evidence: Evidence) -> None:
    evidence.tell("tested", key=SEQUENCE, refused=False)


def early(evidence: Evidence) -> None:
    evidence.edit(lambda line: line | {"delay_s": 100.0} if line["what"] == "asked" and line["key"] == FAN else line)


def unfinished(evidence: Evidence) -> None:
    evidence.sql("update runs set state = 'queued', ended_at = null where id = :run", run=evidence.run(SEQUENCE))


def held(evidence: Evidence) -> None:
    evidence.tell("held", run=evidence.run(FAN), reason="diverged", detail="", strikes=0, cut_short=0)


def untold(evidence: Evidence) -> None:
    evidence.forget("told", key=FAN)


def result(evidence: Evidence) -> None:
    evidence.edit(lambda line: line | {"value": 7} if line["what"] == "told" and line["key"] == FAN else line)


def state(evidence: Evidence) -> None:
    for run, ordinal in ((LEDGER, 8), (LATER, 7)):
        evidence.sql("update runs set ordinal = :ordinal where id = :run", ordinal=ordinal, run=evidence.run(run))


def no_body(evidence: Evidence) -> None:
    evidence.forget("ended", run=evidence.run(SEQUENCE))


def no_record(evidence: Evidence) -> None:
    evidence.sql("delete from checkpoints where run = :run and key = 'write_out'", run=evidence.run(SEQUENCE))


def after_record(evidence: Evidence) -> None:
    evidence.sql("update workers set state = 'dead'")
    line = evidence.last("began", run=evidence.run(SEQUENCE))
    evidence.tell(**line | {"fence": line["fence"] + 1, "worker": 99999})


def twice(evidence: Evidence) -> None:
    evidence.tell(**evidence.last("began", run=evidence.run(SEQUENCE)))


def repeated(evidence: Evidence) -> None:
    dead_worker(evidence, "stopped")
    began_before(evidence)


def key_twice(evidence: Evidence) -> None:
    no_constraints(evidence)
    evidence.sql(
        "insert into checkpoints select * from checkpoints where run = :run and key = 'look'",
        run=evidence.run(SEQUENCE),
    )


def gap(evidence: Evidence) -> None:
    evidence.sql(
        "update checkpoints set seq = seq + 1 where run = :run and key = 'write_out'", run=evidence.run(SEQUENCE)
    )


def fences(evidence: Evidence) -> None:
    evidence.sql("update checkpoints set fence = 0 where run = :run and super_step = 2 and key = ''",
                 run=evidence.run(LEDGER))  # fmt: skip


def two_owners(evidence: Evidence) -> None:
    line = evidence.last("began", run=evidence.run(FAILED))
    evidence.tell(**line | {"key": "another", "worker": 99999})


def deployment(evidence: Evidence) -> None:
    evidence.sql("update runs set deployment = 'another' where id = :run", run=evidence.run(SEQUENCE))


def fell(evidence: Evidence) -> None:
    evidence.tell("fell", name="worker-1", fallen=1, code=1, words="Traceback")


PLANTS: dict[Rule, tuple[Callable[[Evidence], None], set[Rule]]] = {
    Rule.START_LOST: (start_lost, {Rule.RESULT}),
    Rule.TWO_RUNS: (two_runs, set()),
    Rule.UNASKED: (unasked, set()),
    Rule.REFUSED: (refused, set()),
    Rule.OTHER_INPUT: (other_input, set()),
    Rule.EARLY: (early, set()),
    Rule.UNFINISHED: (unfinished, {Rule.RESULT, Rule.GAP}),
    Rule.HELD: (held, set()),
    Rule.UNTOLD: (untold, set()),
    Rule.RESULT: (result, set()),
    Rule.STATE: (state, set()),
    Rule.NO_BODY: (no_body, set()),
    Rule.NO_RECORD: (no_record, set()),
    Rule.AFTER_RECORD: (after_record, set()),
    Rule.TWICE: (twice, set()),
    Rule.REPEATED: (repeated, set()),
    Rule.KEY_TWICE: (key_twice, {Rule.GAP}),
    Rule.GAP: (gap, set()),
    Rule.FENCES: (fences, set()),
    Rule.TWO_OWNERS: (two_owners, set()),
    Rule.DEPLOYMENT: (deployment, set()),
    Rule.FELL: (fell, set()),
}
"""What is planted for each rule, and which others it breaks besides."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.lower())
def test_a_planted_violation_is_found(evidence: Evidence, rule: Rule) -> None:
    plant, besides = PLANTS[rule]
    plant(evidence)

    assert evidence.broken() == {rule} | besides


def test_no_rule_is_left_out() -> None:
    assert set(RULES) == set(Rule) == set(PLANTS)
