"""`perdure bench`: measure, and show a table."""

from __future__ import annotations

import click

from perdure.bench.goals import MEASURES


class Measures(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new versions only
    """`P1,P3`: a list of measures."""

    name = "list"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, in capitals."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip().upper() for name in str(value).split(",") if name.strip())
        for name in names:
            if name not in MEASURES:
                self.fail(f"{name} is none of {', '.join(MEASURES)}", param, ctx)
        return names


@click.command("bench")
@click.option(
    "--store", metavar="URL", help="Measure beside this store. [default: a SQLite file in a temporary folder]"
)
@click.option("--postgres", metavar="URL", help="Measure P1 on this Postgres, in a schema that is removed again.")
@click.option(
    "--only", type=Measures(), metavar="P1,P3,…", default=(), help=f"Of {', '.join(MEASURES)}. [default: all]"
)
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Times; medians are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a page.")
def bench(*, store: str | None, postgres: str | None, only: tuple[str, ...], repeat: int, as_json: bool) -> None:
    """Measure this machine, each number beside its raw limit.

    The raw limit is what the bare driver does in the same place in the same run. Nothing of an existing store is read
    or written: the bench makes a file, or a schema, of its own.
    """
    from perdure.bench.page import progress, show
    from perdure.bench.plan import measured_all, plan
    from perdure.bench.report import document, rows
    from perdure.terminal.page import print_json

    items = plan(only, store=store, postgres=postgres)
    with progress(items, repeat) as tell:
        found = rows(measured_all(items, repeat=repeat, on_begin=tell))
    if as_json:
        print_json(document(found, repeat=repeat))
    else:
        show(found, repeat=repeat)
