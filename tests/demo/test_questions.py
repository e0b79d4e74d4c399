"""The questions of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.demo import corpus, questions
from perdure.demo.ranker import ranker_of
from perdure.errors import UsageError


def test_two_hundred_different_questions_over_pythons_topics() -> None:
    asked = questions.ask(corpus.load(), 200, python=True)

    assert len(set(asked)) == 200
    assert all(question.endswith("?") for question in asked)


def test_the_same_documents_give_the_same_questions() -> None:
    assert questions.ask(corpus.load(), 300, python=True) == questions.ask(corpus.load(), 300, python=True)


def test_any_first_few_questions_are_of_different_kinds() -> None:
    first = questions.ask(corpus.load(), 3, python=True)

    assert len({question.split()[0:4][-1] for question in first}) == 3


def test_every_question_finds_something() -> None:
    ranker = ranker_of(None)

    assert [q for q in questions.ask(corpus.load(), 400, python=True) if not ranker.search(q)] == []


def test_any_folder_gives_questions_about_its_headings(tmp_path: Path) -> None:
    (tmp_path / "leases.md").write_text("# Leases\n\nA lease ends.\n\n## Fences\n\nA fence grows.\n")
    loaded = corpus.load(str(tmp_path))

    asked = questions.ask(loaded, 20, python=False)

    assert len(set(asked)) == 20
    assert asked[0] == 'What do the documents say about "Leases"?'
    assert asked[1] == 'What does "Leases" say about "Fences"?'


@pytest.mark.parametrize("count", [0, -1, questions.QUESTIONS_MAX + 1])
def test_a_count_out_of_bounds_is_a_usage_error(count: int) -> None:
    with pytest.raises(UsageError):
        questions.ask(corpus.load(), count, python=True)
