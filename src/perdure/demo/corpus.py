"""Documents, cut into passages that can be found, read and cited.

By default the documents are the language reference topics that every Python ships (`pydoc_data.topics`); a folder of
text, reStructuredText, Markdown or HTML works the same. Each format is first turned into blocks (headings,
paragraphs, code), and one function cuts the blocks of any format into passages. Sections that several documents
repeat are kept once, in the shortest document that has them, so that a citation names the most specific source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from perdure.errors import UsageError

PASSAGE_CHARS: Final = 900
"""About a paragraph or three: long enough to answer a question, short enough for a small model's prompt."""

FILE_BYTES_MAX: Final = 5_000_000
"""A larger file is skipped: it is data, not prose."""

FILES_MAX: Final = 2_000
"""Files read from one folder; each worker holds the index in memory."""


class Kind(Enum):
    """What a block of a document is."""

    HEADING = "heading"
    PROSE = "prose"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a document as its format delimits it."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A citable piece of a document. `id` is unique in the corpus: the document's name, `#`, a number from 1."""

    id: str
    document: str
    title: str
    section: str
    prose: tuple[str, ...]
    """The paragraphs, without code and grammar: what may be quoted."""

    @property
    def text(self) -> str:
        return "\n\n".join(self.prose)

    @property
    def name(self) -> str:
        """How a citation calls it."""
        return self.title if self.section == self.title else f"{self.title} › {self.section}"


@dataclass(frozen=True, slots=True)
class Corpus:
    """All passages, in the documents' order, and where they are from."""

    source: str
    passages: tuple[Passage, ...]

    @property
    def documents(self) -> int:
        return len({passage.document for passage in self.passages})


@lru_cache(maxsize=4)
def load(folder: str | None = None) -> Corpus:
    """The corpus of a folder, or of Python's own topics. Cached: every step of a process shares it."""
    if folder is None:
        corpus = Corpus("the language reference topics of this Python", tuple(cut(python_topics())))
    else:
        corpus = Corpus(folder, tuple(cut(read_folder(Path(folder)))))
    if not corpus.passages:
        raise UsageError(f"No prose found in {corpus.source}: point --docs at a folder of text, Markdown or HTML.")
    return corpus


def python_topics() -> dict[str, list[Block]]:
    """The reference topics that `help()` shows."""
    from pydoc_data.topics import topics

    return {name: text_blocks(text) for name, text in topics.items()}


def read_folder(folder: Path) -> dict[str, list[Block]]:
    """Every readable document below the folder, by its relative path."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: --docs takes one of text, Markdown or HTML files.")
    documents: dict[str, list[Block]] = {}
    for path in sorted(folder.rglob("*"))[: FILES_MAX * 10]:
        parse = FORMATS.get(path.suffix.lower())
        if parse is None or not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
            continue
        documents[path.relative_to(folder).as_posix()] = parse(path.read_text("utf-8", errors="replace"))
        if len(documents) == FILES_MAX:
            break
    return documents


def cut(documents: dict[str, list[Block]]) -> Iterator[Passage]:
    """Passages of all documents: cut at headings and at a size, each text once."""
    seen: set[str] = set()
    shortest_first = sorted(documents, key=lambda name: (size(documents[name]), name))
    kept = {name: list(fresh_sections(documents[name], seen)) for name in shortest_first}
    for name in sorted(kept):
        title = next((b.text for b in documents[name] if b.kind is Kind.HEADING), Path(name).stem)
        number = 0
        for section, paragraphs in kept[name]:
            for prose in chunks(paragraphs):
                number += 1
                yield Passage(f"{name}#{number}", name, title, section or title, prose)


def size(blocks: list[Block]) -> int:
    return sum(len(block.text) for block in blocks)


def fresh_sections(blocks: list[Block], seen: set[str]) -> Iterator[tuple[str, list[str]]]:
    """A document's sections with the paragraphs that no document before it had."""
    section, paragraphs = "", list[str]()
    for block in [*blocks, Block(Kind.HEADING, "")]:
        if block.kind is Kind.HEADING:
            if paragraphs:
                yield section, paragraphs
            section, paragraphs = block.text, []
        elif block.kind is Kind.PROSE and block.text not in seen:
            seen.add(block.text)
            paragraphs.append(block.text)


def chunks(paragraphs: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Paragraphs in groups of about `PASSAGE_CHARS`; a longer paragraph stays whole."""
    group: list[str] = []
    length = 0
    for paragraph in paragraphs:
        if group and length + len(paragraph) > PASSAGE_CHARS:
            yield tuple(group)
            group, length = [], 0
        group.append(paragraph)
        length += len(paragraph)
    if group:
        yield tuple(group)


# -- formats ------------------------------------------------------------------------------------------------------


def words(text: str) -> frozenset[str]:
    """A set, written as a line of words."""
    return frozenset(text.split())


UNDERLINE = re.compile(r"([=*\-~^#\"'+])\1{2,}\s*")
LIST_ITEM = re.compile(r"(?m)^\s*(?:[*+\-•]|\d+[.)])\s+")
CODE_SIGN = re.compile(r"::=|^\s*>>>|^\s*\.\.\. |^\s*\+[-=]+\+", re.MULTILINE)


def text_blocks(text: str) -> list[Block]:
    """Plain text and reStructuredText: paragraphs between blank lines, headings over a row of signs."""
    blocks: list[Block] = []
    for raw in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        lines = raw.strip("\n").split("\n")
        while lines and UNDERLINE.fullmatch(lines[0]):
            lines = lines[1:]
        if len(lines) > 1 and UNDERLINE.fullmatch(lines[1]):
            blocks.append(Block(Kind.HEADING, squeeze(unmark(lines[0]))))
            lines = lines[2:]
        if lines and any(line.strip() for line in lines):
            blocks.append(paragraph("\n".join(lines)))
    return blocks


def markdown_blocks(text: str) -> list[Block]:
    """Markdown: `#` and underlined headings; fenced code is code; links and emphasis keep their words."""
    blocks: list[Block] = []
    for number, part in enumerate(re.split(r"(?m)^\s*(?:```|~~~).*$", text.replace("\r\n", "\n"))):
        if number % 2:
            blocks.append(Block(Kind.CODE, part))
            continue
        part = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"(?s)<!--.*?-->", "", part))
        part = re.sub(r"(?m)^(#{1,6})\s+(.*?)\s*#*$", lambda m: f"\n{m[2]}\n====\n", part)
        blocks.extend(text_blocks(part))
    return blocks


class PageReader(HTMLParser):
    """Collects a page's headings, paragraphs and preformatted text, without scripts and navigation."""

    BREAKS: Final = words(
        """address article aside blockquote br dd div dl dt figcaption footer form header hr li main ol p section table
        td th tr ul"""
    )
    SILENT: Final = words("script style nav template noscript svg")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self.words: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SILENT:
            self.silent += 1
        elif tag in self.BREAKS or tag == "pre" or re.fullmatch(r"h[1-6]", tag):
            self.end_block(Kind.PROSE)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SILENT:
            self.silent = max(0, self.silent - 1)
        elif (tag == "title" and not self.silent) or re.fullmatch(r"h[1-6]", tag):
            self.end_block(Kind.HEADING)
        elif tag in self.BREAKS or tag == "pre":
            self.end_block(Kind.CODE if tag == "pre" else Kind.PROSE)

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)

    def end_block(self, kind: Kind) -> None:
        text = squeeze("".join(self.words))
        self.words.clear()
        if text:
            self.blocks.append(Block(kind, text))


def html_blocks(text: str) -> list[Block]:
    """HTML: by its block elements."""
    reader = PageReader()
    reader.feed(text)
    reader.close()
    reader.end_block(Kind.PROSE)
    return reader.blocks


def paragraph(raw: str) -> Block:
    """Prose on one line, or code where grammar, prompts or tables show."""
    if CODE_SIGN.search(raw) or mostly_signs(raw):
        return Block(Kind.CODE, raw)
    whole = re.sub(r"(?<=\w)-\n\s*(?=\w)", "-", LIST_ITEM.sub("", raw))
    return Block(Kind.PROSE, squeeze(unmark(whole)))


def mostly_signs(raw: str) -> bool:
    """Indented lines that hold more signs than a sentence would."""
    if not raw.startswith("   "):
        return False
    signs = sum(1 for sign in raw if not (sign.isalnum() or sign.isspace() or sign in ".,;'\"’“”-()*"))
    return signs * 25 > len(raw) or not re.search(r"[.:;!?][\"”)]?\s*$", raw)


def unmark(text: str) -> str:
    """Without emphasis signs and the quotes that the topics put around code."""
    text = re.sub(r"(?<![\w*])\*{1,2}(?=\w)([^*\n]+?)(?<=\w)\*{1,2}(?![\w*])", r"\1", text)
    return re.sub(r"``?([^`\n]+)``?", r"\1", text)


def squeeze(text: str) -> str:
    return " ".join(text.split())


FORMATS: Final[dict[str, Callable[[str], list[Block]]]] = {
    ".txt": text_blocks,
    ".rst": text_blocks,
    ".md": markdown_blocks,
    ".markdown": markdown_blocks,
    ".html": html_blocks,
    ".htm": html_blocks,
}
