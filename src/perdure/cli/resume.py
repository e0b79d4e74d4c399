"""`perdure resume`: answer a question."""

from __future__ import annotations

import getpass
import json
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

import click

from perdure.cli.given import given_text, parse_json_or_word
from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import told
from perdure.cli.stores import find_run, opened_app, run_async
from perdure.core.records import InterruptState, parse_id
from perdure.core.states import TERMINAL
from perdure.errors import AlreadyAnswered, InvalidAnswer, NotFound, UsageError
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.cli.facts import Fact
    from perdure.client.inbox import InterruptInfo

SHOWN_CHARS: Final = 200
"""Of an answer that is told."""

SAID_CHARS: Final = 140
"""Of what is wrong with an answer about a budget."""

PLACEHOLDER: Final = "ANSWER"
"""What messages put in its place: whoever copies them has not answered yet."""

_MEANT: Final = {"yes": "true", "y": "true", "no": "false", "n": "false", "none": "null"}
"""JSON for words that people and languages have for it."""


@click.command()
@click.argument("question", metavar="INTERRUPT|THREAD")
@click.argument("answer", required=False)
@click.option("--file", metavar="FILE", help="The answer is in this file; - is stdin.")
@click.option("--by", metavar="NAME", help="Who answers.  [your login name]")
@click.option("--digest", help="Only if this is the question's digest, as it was where you saw it.")
@store_option
@json_option
def resume(
    *, store: str, question: str, answer: str | None, file: str | None, by: str | None, digest: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Answer a question; its run goes on.

    It is named by its id, or by its thread, where that has exactly one open. ANSWER is JSON; a word that is none is a
    text, where the question takes one. - reads it from stdin. The first answer wins; the same one again changes
    nothing. Another one exits with 4, and says which stands.
    """
    text = None if answer is None and file is None else given_text("ANSWER", answer, file)
    run_async(_resume(store, question, text, by=by or login_name(), digest=digest, as_json=as_json))


def login_name() -> str | None:
    """Who is logged in, as far as this machine knows."""
    try:
        return getpass.getuser() or None
    except (OSError, KeyError, ImportError):
        return None


async def _resume(url: str, what: str, text: str | None, *, by: str | None, digest: str | None, as_json: bool) -> None:
    from perdure.cli.budget_questions import asks_for_budget
    from perdure.cli.waiting_documents import interrupt_document
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        asked = await _asked(app, what)
        if text is None or text == PLACEHOLDER:
            how = "" if asked is None else f" {_both(asked)}" if asks_for_budget(asked) else _hint(asked, "")
            raise UsageError(f"say the answer in place of ANSWER, or give --file.{how}")
        value, is_word = _answer(text, asked)
        name = what if asked is None else asked.id
        try:
            won = await app.resume(name, value, by=by, digest=digest)
        except AlreadyAnswered as lost:
            if as_json:
                print_json(interrupt_document(await app.interrupt_info(lost.interrupt_id)))
            raise
        except InvalidAnswer as error:
            raise _explained(error, asked, text, is_word=is_word) from error
        fact = await _fact(app, won.run_id)
    if as_json:
        print_json(interrupt_document(won))
        return
    before = asked is not None and asked.state is InterruptState.ANSWERED
    click.echo(_who_won(won, repeated=before or won.answered_by != by, is_word=is_word))
    click.echo(_goes_on(fact))


async def _asked(app: App, what: str) -> InterruptInfo | None:
    """The question that is meant; None where it will be said why there is none, or which there are."""
    if parse_id("i", what) is not None:
        try:
            return await app.interrupt_info(what)
        except NotFound:  # a thread may be called so
            pass
    found = await app.interrupts(thread_id=what, limit=2)
    return found[0] if len(found) == 1 else None


def _answer(text: str, asked: InterruptInfo | None) -> tuple[Any, bool]:
    """The answer, and whether it is a word that was taken as text."""
    from perdure.cli.budget_questions import asks_for_budget
    from perdure.cli.schema_words import fits

    value, is_word = parse_json_or_word("ANSWER", text)
    if is_word and asked is not None and asked.state is InterruptState.OPEN and not fits(asked.schema, value):
        if asks_for_budget(asked):
            raise InvalidAnswer(f"ANSWER is JSON, which {clean(text)[:SAID_CHARS]} is not; {_both(asked)}")
        raise InvalidAnswer(f"ANSWER is JSON, which {clean(text)[:SHOWN_CHARS]} is not.{_hint(asked, text)}")
    return value, is_word


def _explained(
    error: InvalidAnswer, asked: InterruptInfo | None, text: str, *, is_word: bool
) -> InvalidAnswer:  # fmt: skip
    """The refusal, with what would have done."""
    from perdure.cli.budget_questions import asks_for_budget
    from perdure.cli.schema_words import fits

    if asked is None:
        return error
    if asks_for_budget(asked):
        return InvalidAnswer(f"{_in_short(error)}; {_both(asked)}", **error.ids)
    quoted = shlex.quote(json.dumps(text, ensure_ascii=False))
    as_text = f" If a text is meant, quote it: {quoted}." if not is_word and fits(asked.schema, text) else ""
    return InvalidAnswer(f"{error}{as_text}{_hint(asked, text)}", **error.ids)


def _both(asked: InterruptInfo) -> str:
    """Where both answers to a question about a budget stand."""
    return f"`perdure interrupts show {asked.id}` shows the two answers that it takes"


def _in_short(error: InvalidAnswer) -> str:
    """What is wrong with an answer, without whose it is and all that it could have been."""
    text = re.sub(r"^question i\d+ of run r\d+ \(.*?\): ", "", str(error), flags=re.DOTALL)
    said = text.partition(" Expected there: ")[0].removesuffix("The question stays open.").strip().rstrip(".")
    return said if len(said) <= SAID_CHARS else said[: SAID_CHARS - 1] + "…"


def _hint(asked: InterruptInfo, text: str) -> str:
    """What an answer is, and a command that gives one."""
    from perdure.cli.interrupt_pages import answer_command
    from perdure.cli.schema_words import fits, in_words

    meant = _MEANT.get(text.strip().lower(), text.strip().lower())
    if meant in ("true", "false", "null") and meant != text and fits(asked.schema, json.loads(meant)):
        return f" Did you mean {meant}: `perdure resume {asked.id} {meant}`?"
    return f" An answer is {clean(in_words(asked.schema))}: `{answer_command(asked)}`"


def _who_won(won: InterruptInfo, *, repeated: bool, is_word: bool) -> str:
    from perdure.cli.waiting_documents import jsonable

    value = clean(json.dumps(jsonable(won.answer), ensure_ascii=False))
    shown = value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "…"
    who = f" by {clean(won.answered_by)}" if won.answered_by else ""
    if repeated:
        return f"{won.id} had this answer already{who}: {shown}"
    return f"{won.id} is answered{who}: {shown}" + (" (a text)" if is_word else "")


async def _fact(app: App, run: str) -> Fact:
    from perdure.cli.facts import gather_facts

    store = (await app._client()).store
    return (await gather_facts(store, [await find_run(store, run)])).items[0]


def _goes_on(fact: Fact) -> str:
    """Where its run stands."""
    from perdure.core.records import run_id

    run = fact.run
    name = f"{run_id(run.id)} (agent {clean(run.agent)}, thread {clean(run.thread_id)})"
    if run.cancel is not None and run.state not in TERMINAL:
        return (
            f"{name} will end as cancelled all the same: that was asked for before ({clean(run.cancel)}), and the "
            "answer does not change it"
        )
    if fact.why is None:
        return f"{name} is {run.state.value}"
    remedy = f"; {told(fact.why.remedy)}" if fact.why.remedy else ""
    return f"{name} is {run.state.value}; it waits for {fact.why.what}{remedy}"
