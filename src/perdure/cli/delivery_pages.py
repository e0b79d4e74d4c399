"""The pages of `perdure deliveries`: the outbox, and one delivery with what can be done about it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from perdure.cli.interrupt_pages import print_value, us
from perdure.cli.paging import print_more
from perdure.cli.remedies import command, told
from perdure.cli.waiting_documents import jsonable
from perdure.client.deliveries import OVERDUE_US, DeliveryInfo
from perdure.core.deliveries import Delivery, DeliveryState
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import run_id
from perdure.terminal.page import Middle, Page, Tail, header, state, table
from perdure.terminal.text import ago, away, clean, clean_block, duration, first_line, moment

HEAD_CHARS: Final = 200
"""Of a payload in the list: more than a column shows."""


def print_deliveries(
    page: Page, infos: Sequence[DeliveryInfo], *, state: DeliveryState | None, now_us: int, more: bool,
    further: Mapping[DeliveryState, int],
) -> None:  # fmt: skip
    """The outbox. `further`: how many come after the page, of those that wait for somebody."""
    if not infos:
        page.say(Text("no deliveries" if state is None else f"no {state.value} deliveries", style="dim"))
        return
    rows = table("id", "state", "sink", "partition", "run", "tries", "when", "what", right=("tries",), give=_GIVE)
    for info in infos:
        rows.add_row(
            info.id,
            _state(info),
            Middle(info.sink, most=20),
            Middle(info.partition, most=20),
            info.run_id,
            str(info.attempts),
            _when(info, now_us=now_us),
            _what(info),
        )
    page.print(rows)
    if more:
        print_more(page, infos[-1].id)
        if told := ", ".join(_counted(each, number) for each, number in further.items() if number):
            page.say(Text(f"after these: {told}", "red" if further.get(DeliveryState.DEAD) else "dim"))


def _counted(state: DeliveryState, number: int) -> str:
    more = " or more" if number >= LIST_ROWS_MAX else ""
    return f"{number:,}{more} {state.value} (--state {state.value})"


_GIVE: Final = ("sink", "partition", "what")


def _state(info: DeliveryInfo) -> Text:
    return state(info.state.value)


def _when(info: DeliveryInfo, *, now_us: int) -> str | Text:
    """When it is tried next, or since when it is due; else when something became of it."""
    if info.state is DeliveryState.QUEUED and us(info.due_at) > now_us:
        return away(us(info.due_at), now_us=now_us)
    if info.state is DeliveryState.QUEUED and info.ready and now_us - us(info.due_at) > OVERDUE_US:
        return Text(f"due {ago(us(info.due_at), now_us=now_us)}", "yellow")
    return ago(us(info.settled_at or info.created_at), now_us=now_us)


def _what(info: DeliveryInfo) -> Tail:
    """Why it is not there yet, or what it holds."""
    if info.error is not None:
        return Tail(first_line(info.error), "red" if info.state is DeliveryState.DEAD else "yellow")
    if info.bill:
        return Tail(f"the bill of {info.run_id}, {info.payload['state']}")
    return Tail(json.dumps(jsonable(info.payload), ensure_ascii=False)[:HEAD_CHARS])


# -- one ------------------------------------------------------------------------------------------------------------


def print_delivery(page: Page, info: DeliveryInfo, *, now_us: int, since: int | None, alive: bool) -> None:
    """One delivery. `since`: since when it could have been taken; `alive`: whether any worker is."""
    page.say(Text(info.id, "bold"), "  to ", Text(clean(info.sink), "bold"), "  ", _state(info))
    page.print(header(_header_rows(info, now_us=now_us, since=since)))
    page.say()
    page.say(Text("bill" if info.bill else "payload", "bold"))
    print_value(page, info.payload)
    if info.error is not None:
        page.say()
        page.say(Text("error", "bold red"))
        page.print(Text(clean_block(info.error)), overflow="fold")
    if (remedy := what_to_do(info, late=None if since is None else now_us - since, alive=alive)) is not None:
        page.say()
        page.print(Text.assemble(("what to do: ", "bold"), told(remedy)), overflow="fold")


def _header_rows(info: DeliveryInfo, *, now_us: int, since: int | None) -> Iterator[tuple[str, str | Text]]:
    yield "run", f"{info.run_id}, agent {clean(info.agent)}"
    yield "thread", clean(info.thread_id)
    turn = "; it is its turn" if info.ready and info.state is DeliveryState.QUEUED else ""
    yield "lane", f"partition {clean(info.partition)}, as number {info.seq}{turn}"
    yield "key", f"{clean(info.key)}, what its sink knows it by"
    yield "handed over", f"{moment(us(info.created_at))}, {ago(us(info.created_at), now_us=now_us)}"
    if info.attempts:
        yield "tried", f"{info.attempts}×" + (f", now by {info.worker}" if info.worker else "")
    if info.settled_at is not None:
        ended = "delivered" if info.state is DeliveryState.DELIVERED else "given up"
        label = ended if info.state in (DeliveryState.DELIVERED, DeliveryState.DEAD) else "last tried"
        yield label, f"{moment(us(info.settled_at))}, {ago(us(info.settled_at), now_us=now_us)}"
    if info.state is DeliveryState.QUEUED and us(info.due_at) > now_us:
        yield "next try", f"{moment(us(info.due_at))}, {away(us(info.due_at), now_us=now_us)}"
    if since is not None:
        late = now_us - since > OVERDUE_US
        said = f"since {moment(since)}" + (f": {duration(now_us - since)} overdue" if late else "")
        yield "due", Text(said, "bold yellow" if late else "")
    if info.tenant:
        yield "tenant", clean(info.tenant)


def what_to_do(info: DeliveryInfo, *, late: int | None, alive: bool) -> str | None:
    """For one that is dead the command that sends it on; for one that waits, what for. `late`: for how long it could
    have been taken, and was not."""
    lane = f"`perdure deliveries list --sink {_word(info.sink)} --partition {_word(info.partition)} --state queued`"
    match info.state:
        case DeliveryState.DEAD:
            return f"when its sink can take it, `perdure deliveries redeliver {info.id}`"
        case DeliveryState.QUEUED if not info.ready:
            return f"nothing: it waits for earlier ones of its lane ({lane})"
        case DeliveryState.QUEUED if late is not None and not alive:
            return f"no worker is alive; start one whose app has sink {clean(info.sink)}: `perdure worker MODULE:APP`"
        case DeliveryState.QUEUED if late is not None and late > OVERDUE_US:
            return (
                f"no worker that is alive (`perdure workers list`) takes it: none has sink {clean(info.sink)}, or it "
                "has its hands full; start one whose app has it: `perdure worker MODULE:APP`"
            )
        case DeliveryState.QUEUED if late is not None:
            return "nothing, where a worker is alive whose app has this sink (`perdure workers list`)"
        case _:
            return None


def _word(text: str) -> str:
    return shlex.quote(clean(text))


# -- on the page of its run -----------------------------------------------------------------------------------------


def outbox_rows(rows: Sequence[Delivery]) -> Iterator[tuple[str, str | Text]]:
    """What became of what a run has handed over, in its header."""
    if not rows:
        return
    states = Counter(row.state for row in rows)
    more = " or more" if len(rows) >= LIST_ROWS_MAX else ""
    tally = ", ".join(f"{states[each]:,} {each.value}" for each in DeliveryState if states[each])
    listing = command(f"perdure deliveries list --run {run_id(rows[0].run)}")
    yield "deliveries", Text(f"{tally}{more}: {listing}", "yellow" if states[DeliveryState.DEAD] else "")
