"""Finding and quoting without a model."""

from __future__ import annotations

from perdure.demo.ranker import Note, compose, merge, ranker_of, tokens


def test_a_question_finds_the_document_that_is_about_it() -> None:
    ranker = ranker_of(None)

    assert ranker.search('How does the "with" statement work?')[0].passage.startswith("with#")
    assert ranker.search("Which rules apply to the power operator?")[0].passage.startswith(("power#", "operator-summ"))


def test_the_same_question_finds_the_same_passages() -> None:
    ranker = ranker_of(None)

    assert ranker.search("a data descriptor", 8) == ranker.search("a data descriptor", 8)


def test_words_that_occur_nowhere_find_nothing() -> None:
    assert ranker_of(None).search("zyzzyva quokka") == []


def test_a_quoted_word_counts_even_if_every_question_has_it() -> None:
    assert tokens('the "with" statement') == ["statement", "with"]
    assert tokens("the statement with") == ["statement"]


def test_notes_are_whole_sentences_of_their_passage() -> None:
    ranker = ranker_of(None)
    passage = ranker.passages["with#1"]

    notes = ranker.extract('How does the "with" statement work?', passage)

    assert notes
    assert all(note.quote in passage.text and note.quote[-1] in '.!?"”)' for note in notes)


def test_notes_that_say_the_same_or_too_little_are_dropped() -> None:
    one = Note("a#1", "A", "The lease is renewed by a thread of its own.", 2.0)
    same = Note("b#1", "B", "A thread of its own renewed the lease.", 1.0)
    other = Note("c#1", "C", "Fences only grow.", 1.5)
    weak = Note("d#1", "D", "Anything else.", 0.1)

    assert merge([weak, other, same, one]) == [one, other]


def test_an_answer_cites_each_source_under_one_number() -> None:
    notes = [Note("a#1", "A", "First.", 3), Note("b#2", "B", "Second.", 2), Note("a#1", "A", "Third.", 1)]

    answer = compose(notes)

    assert answer.text == "First. [1] Second. [2] Third. [1]"
    assert [(citation.number, citation.passage) for citation in answer.citations] == [(1, "a#1"), (2, "b#2")]


def test_an_answer_without_notes_says_so() -> None:
    assert compose([]).citations == []
