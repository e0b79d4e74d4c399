"""The measurement of tasks and threads."""

from __future__ import annotations

import asyncio

from perdure.demo.threads import CALL_S, Measured, in_tasks, in_threads, measure_apart, sentence


def test_all_calls_are_made() -> None:
    assert asyncio.run(in_tasks(50)) == 50
    assert in_threads(50) == 50


def test_a_measurement_is_made_in_a_process_of_its_own() -> None:
    measured = measure_apart("tasks", 200)

    assert (measured.kind, measured.count, measured.begun) == ("tasks", 200, 200)
    assert measured.wall_s >= CALL_S
    assert measured.resident >= 0


def test_the_sentence_compares_the_largest_count() -> None:
    rows = [Measured("tasks", 10, 10, 0.1, 100, None), Measured("threads", 10, 10, 1.0, 500, None)]

    assert "10 times the time and 5 times the memory" in sentence(rows)
    assert "stopped at 4" in sentence([rows[0], Measured("threads", 10, 4, 1.0, 500, None)])
