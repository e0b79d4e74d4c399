"""Remedies: the commands that a message tells a person to type, in backticks.

They must work as they are typed. Whoever named a store with `--store` is told commands that name it too; so is whoever
named an app that brings its own. What the environment says, or is the default, needs no naming.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import Final

import click
from click.core import ParameterSource

from perdure.errors import UsageError

DEFAULT_STORE: Final = "sqlite:///perdure.db"

_LOOKING: Final = (
    "runs|threads|interrupts|resume|effects|deliveries|usage|budgets|messages|cancel|fork|workers|retry|release|migrate"
    "|doctor"
)
_RUNNING: Final = "worker|start"
"""Commands that name an app, and with it the app's own store."""


@dataclass(frozen=True, slots=True)
class Named:
    """The store that remedies must name, and whether it was typed or an app's own."""

    url: str
    typed: bool


def note_store(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of a `--store` option: remember it, if it was typed."""
    if value is not None and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        ctx.meta[__name__] = Named(value, typed=True)
    return value


def look_at(url: str) -> None:
    """What this command says is about the store at that URL, which an app has brought along."""
    if url != _shown(os.environ.get("PERDURE_STORE") or DEFAULT_STORE):
        click.get_current_context().meta.setdefault(__name__, Named(url, typed=False))


def told(text: str) -> str:
    """A message, with the store's option in the commands that it tells."""
    ctx = click.get_current_context(silent=True)
    named = None if ctx is None else ctx.meta.get(__name__)
    return on_store(text, named) if isinstance(named, Named) else text


def command(text: str) -> str:
    """A command by itself, with the store's option."""
    return told(f"`{text}`")[1:-1]


def on_store(text: str, named: Named) -> str:
    """The message for a store that is known; its password is not shown."""
    shown = named.url if named.url.startswith("sqlite:") else _shown(named.url)
    if shown is None:  # what is wrong with it is what the message says
        return text
    verbs = f"{_LOOKING}|{_RUNNING}" if named.typed else _LOOKING
    option = f"--store {shlex.quote(shown)}"
    return re.sub(rf"`(perdure (?:{verbs})\b(?![^`]*--store)[^`]*)`", lambda found: f"`{found[1]} {option}`", text)


def _shown(url: str) -> str | None:
    """The URL as the store itself shows it; None where it is none."""
    from perdure.store import open_url

    try:
        return open_url(url).url
    except UsageError:
        return None
