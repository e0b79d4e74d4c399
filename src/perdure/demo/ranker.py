"""Finding passages and quoting from them, without a model.

Passages are ranked by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), the words of a
passage's title and section counting double. An answer is extractive: the sentences that carry most of the question's
rare words, each with the number of its source. It is no oracle, but it is real work on real text, and the same on
every machine.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perdure.demo import corpus
from perdure.demo.corpus import Corpus, Passage, words

K1: Final = 1.4
B: Final = 0.7
TITLE_WEIGHT: Final = 2

SENTENCE_CHARS_MIN: Final = 30
SENTENCE_CHARS_MAX: Final = 420
"""Shorter ones say nothing by themselves, longer ones are lists that the cutter did not see."""

SAME: Final = 0.6
"""Two sentences that share this much of their words say the same."""

WEAK: Final = 0.45
"""A sentence with less than this share of the best one's score is not worth quoting."""

STOPWORDS: Final = words(
    """a about an and any are as at be between by can do does for from how i if in into is it its may me must not of on
    or other should so such than that the their then there these they this to use used using was what when where which
    who why will with work works would you your difference compare describe explain mean tell say says documentation
    rule rules happen happens relate related reference write differ apply know document documents within stand
    matters"""
)
"""Words that every question has. `if`, `in`, `with` and their like come back where the text quotes them."""

QUOTED = re.compile(r"[\"“'`]([A-Za-z_]\w*)[\"”'`]")
WORD = re.compile(r"[A-Za-z_]\w*")
SENTENCE = re.compile(r"[\"“A-Z].*[.!?][\"”)]?")
SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"”)]))\s+(?=[\"“(A-Z])")


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a query found."""

    passage: str
    score: float


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence worth quoting, and where it stands."""

    passage: str
    source: str
    quote: str
    score: float


@dataclass(frozen=True, slots=True)
class Citation:
    """A numbered source of an answer."""

    number: int
    passage: str
    source: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Text with `[n]` marks and the sources they stand for."""

    text: str
    citations: list[Citation]


def tokens(text: str) -> list[str]:
    """The words that count, lower-case, with plain plurals folded; quoted words count even if they are stopwords."""
    quoted = [word.lower() for word in QUOTED.findall(text)]
    plain = [word.lower() for word in WORD.findall(text)]
    return [fold(word) for word in plain if word not in STOPWORDS] + [word for word in quoted if word in STOPWORDS]


def fold(word: str) -> str:
    """Singular and plural as one; nothing cleverer, so that names stay themselves."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "_")):
        return word[:-1]
    return word


class Ranker:
    """An inverted index over a corpus. Read-only once built, so that all tasks of a process share it."""

    def __init__(self, corpus: Corpus) -> None:
        self.passages = {passage.id: passage for passage in corpus.passages}
        self.postings: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.lengths: dict[str, int] = {}
        for passage in corpus.passages:
            counts = Counter(tokens(passage.text))
            for word in tokens(passage.name):
                counts[word] += TITLE_WEIGHT
            self.lengths[passage.id] = sum(counts.values())
            for word, count in counts.items():
                self.postings[word].append((passage.id, count))
        self.mean = sum(self.lengths.values()) / max(1, len(self.lengths))

    def weight(self, word: str) -> float:
        """How much a word tells: the rarer, the more."""
        found = len(self.postings.get(word, ()))
        return math.log(1 + (len(self.passages) - found + 0.5) / (found + 0.5))

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """The best passages for a query, best first; ties in the corpus's order. Empty if no word occurs."""
        scores: dict[str, float] = defaultdict(float)
        for word in dict.fromkeys(tokens(query)):
            weight = self.weight(word)
            for passage, count in self.postings.get(word, ()):
                norm = K1 * (1 - B + B * self.lengths[passage] / self.mean)
                scores[passage] += weight * count * (K1 + 1) / (count + norm)
        best = sorted(scores.items(), key=lambda item: -item[1])[:limit]
        return [Hit(passage, round(score, 3)) for passage, score in best]

    def extract(self, question: str, passage: Passage, limit: int = 2) -> list[Note]:
        """The passage's sentences that say most about the question, best first; at least its first sentence."""
        wanted = {word: self.weight(word) for word in tokens(question)}
        scored = []
        for place, sentence in enumerate(sentences(passage)):
            found = sum(wanted[word] for word in set(tokens(sentence)) & wanted.keys())
            scored.append((round(found + 0.5 / (1 + place), 3), sentence))
        scored.sort(key=lambda item: -item[0])
        return [Note(passage.id, passage.name, sentence, score) for score, sentence in scored[:limit]]


@lru_cache(maxsize=4)
def ranker_of(folder: str | None) -> Ranker:
    """The index of a folder, or of Python's topics; built once a process."""
    return Ranker(corpus.load(folder))


def sentences(passage: Passage) -> list[str]:
    """A passage's quotable sentences, in order."""
    found = [sentence.strip() for text in passage.prose for sentence in SENTENCE_END.split(text)]
    return [s for s in found if SENTENCE_CHARS_MIN <= len(s) <= SENTENCE_CHARS_MAX and SENTENCE.fullmatch(s)]


def merge(notes: Iterable[Note], limit: int = 6) -> list[Note]:
    """The best notes of all readers, best first, without those that say the same or far less than the best."""
    kept: list[Note] = []
    for note in sorted(notes, key=lambda note: (-note.score, note.passage)):
        weak = kept and note.score < WEAK * kept[0].score
        if not weak and not any(alike(note.quote, other.quote) for other in kept):
            kept.append(note)
    return kept[:limit]


def alike(one: str, other: str) -> bool:
    a, b = set(tokens(one)), set(tokens(other))
    return len(a & b) >= SAME * max(1, min(len(a), len(b)))


def cite(notes: Sequence[Note]) -> list[Citation]:
    """The sources of these notes, numbered from 1 in the order they appear."""
    sources = {note.passage: note.source for note in notes}
    return [Citation(number, passage, source) for number, (passage, source) in enumerate(sources.items(), 1)]


def compose(notes: Sequence[Note], limit: int = 4) -> Answer:
    """An answer in the documents' own sentences, each with its source's number."""
    if not notes:
        return Answer("The documents say nothing about this.", [])
    citations = cite(notes[:limit])
    number = {citation.passage: citation.number for citation in citations}
    return Answer(" ".join(f"{note.quote} [{number[note.passage]}]" for note in notes[:limit]), citations)
