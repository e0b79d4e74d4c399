"""`perdure messages`: what is sent to threads, what waits in their mailboxes, and what could not be received."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.given import given_text, parse_json
from perdure.cli.options import json_option, page_options, store_option, thread_option
from perdure.cli.paging import is_more
from perdure.cli.stores import find_thread, opened_app, run_async
from perdure.errors import NotFound
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.app import App


@click.group()
def messages() -> None:
    """Send messages to threads, and see what lies in mailboxes."""


@messages.command("send")
@click.argument("thread")
@click.argument("message", metavar="JSON", required=False)
@click.option("--file", metavar="FILE", help="The message is in this file; - is stdin.")
@click.option("--label", metavar="TYPE", help="The type that receivers pick it by.  [dict, list, str, int, …]")
@click.option("--key", help="The same key arrives once on this thread, however often it is sent.")
@store_option
@json_option
def send_message(
    *, store: str, thread: str, message: str | None, file: str | None, label: str | None, key: str | None, as_json: bool
) -> None:  # fmt: skip
    """Put a message into the mailbox of THREAD.

    It is on disk when the command returns. An agent that receives a type of its own finds it under the name of that
    type: --label Order. - reads it from stdin. A full mailbox exits with 4.
    """
    value = parse_json("the message", given_text("JSON", message, file))
    run_async(_send(store, thread, value, label=label, key=key, as_json=as_json))


async def _send(url: str, thread: str, value: Any, *, label: str | None, key: str | None, as_json: bool) -> None:
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        row = await find_thread(await _store(app), thread)
        sent = await (app.send(thread, value, key=key) if label is None else _send_as(app, thread, value, label, key))
        head = row.head
    if as_json:
        print_json({"id": sent, "thread_id": thread})
        return
    nobody = "" if head is not None else "; nothing runs there now, so it waits for the next run to receive it"
    arrived = "is in" if key is None else "has arrived in"
    click.echo(f"{sent} {arrived} the mailbox of thread {clean(thread)}{nobody if key is None else ''}")


async def _send_as(app: App, thread: str, value: Any, label: str, key: str | None) -> str:
    """Send plain data under the name of a type, which only its receiver has."""
    from perdure.client.mail import message_key, sent
    from perdure.core.labels import labels_of, message_bytes
    from perdure.core.requests import NewMessage
    from perdure.core.snapshot import spill

    (name,) = labels_of(label)
    known = message_key(key)
    payload, blobs = spill(message_bytes(value))
    client = await app._client()
    return await sent(client, NewMessage(await client.ids.take(1), thread, "", name, payload, blobs, known))


@messages.command("list", short_help="List what waits in a mailbox, in order.")
@click.argument("thread")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most this many messages."
)
@click.option(
    "--after", type=click.IntRange(0, 2**62), metavar="SEQ", default=0, help="Go on after this place in the mailbox."
)
@store_option
@json_option
def list_messages(*, store: str, thread: str, limit: int, after: int, as_json: bool) -> None:
    """List what waits in the mailbox of THREAD, in the order in which it will be received."""
    run_async(_list(store, thread, limit=limit, after=after, as_json=as_json))


async def _list(url: str, thread: str, *, limit: int, after: int, as_json: bool) -> None:
    from perdure.cli.message_pages import print_mailbox
    from perdure.cli.waiting_documents import message_document
    from perdure.client.mail import mailbox
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        row = await find_thread(await _store(app), thread)
        find = partial(mailbox, await app._client(), row.id, row.thread_id)
        infos = await find(limit=limit, after=after)
        more = await is_more(infos, limit, lambda info: find(limit=1, after=info.seq))
        now_us = await (await _store(app)).now_us()
    if as_json:
        print_json([message_document(info) for info in infos])
    else:
        print_mailbox(Page(), infos, thread=thread, now_us=now_us, more=more)


@messages.command("dead", short_help="List messages that could not be received.")
@thread_option("those")
@page_options("message")
@store_option
@json_option
def list_dead(*, store: str, thread_id: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List dead letters: messages that could not be received, and why; oldest first."""
    run_async(_dead(store, thread_id, limit=limit, after=after, as_json=as_json))


async def _dead(url: str, thread: str | None, *, limit: int, after: str | None, as_json: bool) -> None:
    from perdure.cli.message_pages import print_dead
    from perdure.cli.waiting_documents import message_document
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        if thread is not None:
            await find_thread(await _store(app), thread)
        infos = await app.dead_letters(thread, limit=limit, after=after)
        more = await is_more(infos, limit, lambda info: app.dead_letters(thread, limit=1, after=info.id))
        now_us = await (await _store(app)).now_us()
    if as_json:
        print_json([message_document(info) for info in infos])
    else:
        print_dead(Page(), infos, now_us=now_us, more=more)


@messages.command("replay")
@click.argument("message")
@store_option
@json_option
def replay_message(*, store: str, message: str, as_json: bool) -> None:
    """Put MESSAGE, a dead letter, back at the end of its mailbox."""
    run_async(_replay(store, message, as_json=as_json))


async def _replay(url: str, name: str, *, as_json: bool) -> None:
    from perdure.cli.waiting_documents import message_document
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        try:
            info = await app.replay_dead_letter(name)
        except NotFound as error:
            where = app.store_name
            raise NotFound(f"no dead letter {name} in {where}; `perdure messages dead` lists them", id=name) from error
    if as_json:
        print_json(message_document(info))
    else:
        click.echo(f"{info.id} is in the mailbox of thread {clean(info.thread_id)} again, as the last of it")


async def _store(app: App) -> Any:
    return (await app._client()).store
