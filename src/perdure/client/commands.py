"""The command line's commands, as messages of the library tell them: they work as they are typed.

A store that is neither the default nor the environment's is named. What is in memory alone no command can see.
"""

from __future__ import annotations

import os
import shlex

from perdure.errors import UsageError
from perdure.store import open_url

STORE_DEFAULT = "sqlite:///perdure.db"


def command(words: str, store_url: str) -> str:
    """The command, in backticks, for the store whose URL is shown as this."""
    usual = os.environ.get("PERDURE_STORE") or STORE_DEFAULT
    if store_url.startswith("memory:") or store_url in (usual, _shown(usual)):
        return f"`perdure {words}`"
    return f"`perdure {words} --store {shlex.quote(store_url)}`"


def _shown(url: str) -> str | None:
    """The URL as the store itself shows it; None where it is none."""
    try:
        return open_url(url).url
    except UsageError:
        return None
