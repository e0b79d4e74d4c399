"""How the documentation's blocks are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import blocks, commands, matches

PAGE = """\
Words.

```python
# shop.py
x = 1
```

<!-- not run: it never ends -->
```console
$ perdure worker shop:app
```

```console
$ echo one \\
  two
one two
$ true
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_a_block_knows_its_language_its_line_and_its_file(page: Path) -> None:
    first, second, third = blocks(page)
    assert (first.language, first.line, first.file_name) == ("python", 3, "shop.py")
    assert (second.why_not, second.file_name) == ("it never ends", None)
    assert third.why_not is None


def test_a_console_block_is_commands_and_what_they_print(page: Path) -> None:
    read = [(command.text, command.expected) for command in commands(blocks(page)[2])]
    assert read == [("echo one   two", "one two\n"), ("true", "")]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("", "anything", True),
        ("a b", "a\n  b\n", True),
        ("a b", "a b c", False),
        ("...b...", "a b c", True),
        ("a... c", "a b c", True),
        ("...d...", "a b c", False),
    ],
)
def test_output_matches_where_dots_stand_for_anything(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
