"""The project's own files, as the house rules see them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "perdure"

MADE = {".git", ".venv", ".venv-llm", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
"""Folders that tools make; where git is at hand, it knows better."""


@cache
def files() -> tuple[Path, ...]:
    """Every file that is or would be part of the project, sorted."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(git, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if not MADE.intersection(path.relative_to(ROOT).parts))
    else:
        found = (ROOT / name for name in listing.split("\0") if name)
    return tuple(sorted(path for path in found if path.is_file()))


def files_under(folder: Path, suffix: str) -> list[Path]:
    return [path for path in files() if path.suffix == suffix and path.is_relative_to(folder)]


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def name(path: Path) -> str:
    """The path as messages and allowances write it."""
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name inside the file."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name, node
                yield from functions(node, prefix + node.name + ".")
            case ast.ClassDef():
                yield from functions(node, prefix + node.name + ".")
            case _:
                yield from functions(node, prefix)
