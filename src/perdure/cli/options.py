"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from perdure.cli.remedies import DEFAULT_STORE, note_store

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    metavar="URL",
    envvar="PERDURE_STORE",
    default=DEFAULT_STORE,
    show_default="$PERDURE_STORE, else " + DEFAULT_STORE,
    callback=note_store,
    help="The store to work on.",
)
app_store_option = click.option("--store", metavar="URL", callback=note_store, help="Another store than the app's own.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a page.")


class _ThreadOption(click.Option):
    """`--thread-id`, as `app.start` calls it; `--thread` works too, and is not told to anybody."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (record[0].replace(", --thread ", " "), record[1])


def thread_option(what: str) -> Callable[[F], F]:
    """`--thread-id`, to list only what is of one thread."""
    return click.option(
        "--thread-id", "--thread", "thread_id", metavar="THREAD", cls=_ThreadOption, help=f"Only {what} of this thread."
    )


def page_options(noun: str, many: str | None = None) -> Callable[[F], F]:
    """`--limit` and `--after`; `many` is the noun's plural, where that is not made with an s."""

    def wrap(function: F) -> F:
        after = click.option("--after", metavar=noun.upper(), help=f"Go on after this {noun}, the last of a page.")
        limit = click.option(
            "--limit",
            type=click.IntRange(1, 1000),
            default=20,
            show_default=True,
            help=f"At most this many {many or noun + 's'}.",
        )
        return limit(after(function))

    return wrap
