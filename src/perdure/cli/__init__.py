"""The command line: `perdure …`, or `python -m perdure …`.

**Shape.** `root` lists the commands by name and loads one only when it is asked for, so `perdure --help` imports
click and nothing else. Commands that need nobody's code work on a store (`--store`): they look, answer, send, cancel;
commands that run code take a `MODULE:APP`. Rows become plain documents (`documents`), a document becomes JSON or a page
(`terminal`); why a run waits (`waiting`, `awaiting`) and what happened to it (`timeline`) are decided without I/O.

**Streams.** Stdout carries what was asked for, one JSON document with `--json`; everything else goes to stderr.

**Failure.** An error that perdure raises on purpose is one line on stderr and an exit code from `exits`. Anything
else is a defect and shows its traceback.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exit."""
    import io
    import sys

    from perdure.cli.exits import Exit
    from perdure.cli.root import cli

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the character shows a question mark
    try:
        cli(prog_name="perdure")
    except Exception as error:
        import traceback

        from perdure.cli.target import users_part

        traceback.print_exception(type(error), error, users_part(error.__traceback__))
        sys.exit(Exit.DEFECT)
