"""The pages of `perdure messages`: a mailbox, and dead letters."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from perdure.cli.paging import print_more
from perdure.cli.remedies import command
from perdure.cli.waiting_documents import jsonable
from perdure.client.mail import MessageInfo
from perdure.core.times import due_us
from perdure.terminal.page import Middle, Page, Tail, table
from perdure.terminal.text import ago, clean, count

HEAD_CHARS = 200


def print_mailbox(page: Page, infos: Sequence[MessageInfo], *, thread: str, now_us: int, more: bool) -> None:
    """What waits in a mailbox."""
    if not infos:
        page.say(Text(f"no messages wait on thread {clean(thread)}", style="dim"))
        return
    rows = table("message", "seq", "type", "from", "sent", "says", right=("seq",), give=("type", "says"))
    for info in infos:
        rows.add_row(
            info.id,
            str(info.seq),
            Middle(info.type, most=24),
            info.sender or Text("outside", "dim"),
            ago(due_us(info.sent_at), now_us=now_us),
            Tail(head(info)),
        )
    page.print(rows)
    if more:
        print_more(page, str(infos[-1].seq))


def print_dead(page: Page, infos: Sequence[MessageInfo], *, now_us: int, more: bool) -> None:
    """Dead letters, each with the reason below it."""
    if not infos:
        page.say(Text("no dead letters", style="dim"))
        return
    for info in infos:
        page.say(
            Text(info.id, "bold"),
            f"  {clean(info.type)} from {info.sender or 'outside'} to thread {clean(info.thread_id)}, ",
            ago(due_us(info.sent_at), now_us=now_us),
        )
        page.say(head(info), indent=4)
        page.print(Text(f"    {clean(info.dead or '')}", style="red"), overflow="fold")
    page.say()
    page.say(
        Text(f"{count(len(infos), 'dead letter')}; with code that can receive it, put one back: ", "dim"),
        command(f"perdure messages replay {infos[0].id}"),
    )
    if more:
        print_more(page, infos[-1].id)


def head(info: MessageInfo) -> str:
    """The beginning of what it says."""
    return clean(json.dumps(jsonable(info.message), ensure_ascii=False)[:HEAD_CHARS])
