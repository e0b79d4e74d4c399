"""The documents behind the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.demo import corpus
from perdure.errors import UsageError


def test_pythons_own_topics_are_the_default_corpus() -> None:
    loaded = corpus.load()

    assert loaded.documents > 70
    assert len(loaded.passages) > 300
    assert len({passage.id for passage in loaded.passages}) == len(loaded.passages)


def test_a_passage_is_prose_without_grammar_and_prompts() -> None:
    text = "\n".join(passage.text for passage in corpus.load().passages)

    assert "::=" not in text
    assert ">>> " not in text


def test_a_section_that_several_documents_repeat_is_kept_once() -> None:
    sections = [passage.document for passage in corpus.load().passages if passage.text.startswith('The "while" state')]

    assert sections == ["while"]


def test_long_sections_are_cut_near_the_size_of_a_passage() -> None:
    for passage in corpus.load().passages:
        assert len(passage.text) < 2 * corpus.PASSAGE_CHARS or len(passage.prose) == 1


def test_markdown_text_and_html_give_the_same_passages(tmp_path: Path) -> None:
    body = "A lease is a right to write until a time. It is renewed by a thread of its own."
    forms = {
        "a.md": f"# Leases\n\n## How long\n\n{body}\n\n```python\nlease()\n```\n",
        "a.txt": f"Leases\n======\n\nHow long\n--------\n\n{body}\n",
        "a.html": f"<html><head><title>Leases</title><script>x()</script></head><body><h2>How long</h2><p>{body}</p>"
        "<pre>lease()</pre></body></html>",
    }
    for name, text in forms.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text(text, "utf-8")

        (passage,) = corpus.load(str(folder)).passages

        assert (passage.id, passage.name, passage.text) == (f"{name}#1", "Leases › How long", body)


def test_links_and_emphasis_keep_their_words() -> None:
    (block,) = corpus.markdown_blocks("See **the** [glossary](glossary.md) for `lease`.")

    assert block.text == "See the glossary for lease."


def test_other_files_and_huge_ones_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FILE_BYTES_MAX", 100)
    (tmp_path / "data.csv").write_text("a,b\n")
    (tmp_path / "huge.md").write_text("word " * 100)
    (tmp_path / "good.md").write_text("A short sentence about leases.")

    assert list(corpus.read_folder(tmp_path)) == ["good.md"]


def test_a_folder_without_prose_is_a_usage_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--docs"):
        corpus.load(str(tmp_path))
    with pytest.raises(UsageError, match="not a folder"):
        corpus.load(str(tmp_path / "missing"))
