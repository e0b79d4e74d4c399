"""One meaning a word: the glossary has them all, and no file speaks of what is none of the reader's business."""

from __future__ import annotations

import re

from tests.house import tree

GLOSSARY = tree.ROOT / "docs" / "glossary.md"

WORDS = (
    "agent", "attempt", "checkpoint", "claim", "compensation", "deployment", "drain", "effect", "fence", "hold",
    "interrupt", "journal", "key", "lease", "mailbox", "message", "outbox", "park", "relay", "release", "renew",
    "resume", "run", "sink", "step", "super-step", "take over", "thread", "trust window", "version", "worker",
)  # fmt: skip

STATES = (
    "queued", "running", "waiting", "held", "completed", "failed", "cancelled", "idle", "processing", "response",
)  # fmt: skip

CHANGES = ("AppendCheckpoint", "RecordAttempt", "BeginSuperStep", "EndRun", "RequeueRun", "HoldRun")

FOREIGN = re.compile(
    "|".join(
        (
            r"/work/", r"/tmp/w\b", r"/root/", r"\.pyenv\b", r"\bsub-?agents?\b", r"\bchatbots?\b",
            r"\bissue\s+#?\d+", r"\blater issues?\b", r"\bpypi\.org\b", r"\bpythonhosted\b", r"\bnpmjs\b",
            r"\bdeb\.debian\.org\b", r"\bCo-Authored-By\b", r"\bDESIGN\.md\b", r"\bDESIGN section\b",
        )
    ),
    re.IGNORECASE,
)  # fmt: skip
"""Workplaces, trackers, registries and private papers: a reader of the project has none of them."""

SESSION = re.compile(r"\bsessions?\b", re.IGNORECASE)
DATABASE_SESSION = re.compile(
    r"postgres|pooler|lock|database|connection|advisory|clients, sessions|scope="
    r"|session: bool|\.session\b|session=\w",
    re.IGNORECASE,
)
"""A session is a database's (or an HTTP client's, or pytest's); a conversation is a thread."""

DATABASES = ("src/perdure/store/", "tests/store/", "tests/support/postgres.py", "src/perdure/testing/conformance/")

NOT_PROSE = {"LICENSE", "tests/house/test_words.py"}


def lines() -> list[tuple[str, str]]:
    """Every line of every text file, with where it is."""
    found = []
    for path in tree.files():
        if tree.name(path) in NOT_PROSE:
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [(f"{tree.name(path)}:{number}", line) for number, line in enumerate(text.splitlines(), start=1)]
    return found


def test_every_word_of_the_project_is_in_the_glossary() -> None:
    headings = set(re.findall(r"^\*\*(.+?)\*\*", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE))
    entries = {word.strip(" `") for heading in headings for word in heading.split(",")}
    wanted = {*WORDS, *STATES, *CHANGES}
    assert sorted(wanted - entries) == []


def test_the_glossary_is_in_order() -> None:
    parts = re.split(r"^## ", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = re.findall(r"^\*\*`?(.+?)`?\*\*", parts[1], re.MULTILINE)
    assert words == sorted(words, key=str.casefold)


def test_no_file_speaks_of_a_workplace() -> None:
    assert [f"{place}: {line.strip()}" for place, line in lines() if FOREIGN.search(line)] == []


def test_a_conversation_is_a_thread() -> None:
    wrong = [
        f"{place}: {line.strip()}"
        for place, line in lines()
        if SESSION.search(line) and not DATABASE_SESSION.search(line) and not place.startswith(DATABASES)
    ]
    assert wrong == []
