"""`perdure messages`: mailboxes and dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from perdure.cli.exits import Exit
from perdure.client.mail import MessageInfo
from tests.cli.asked import Asked
from tests.cli.conftest import Run


def mailbox(at_store: Run, thread: str, *arguments: str) -> list[dict[str, Any]]:
    result = at_store("messages", "list", thread, "--json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_mailbox_is_listed_in_the_order_in_which_it_will_be_received(at_store: Run, there: Asked) -> None:
    first, second = mailbox(at_store, "mail")

    assert list(first) == list(MessageInfo.__slots__)
    assert (first["message"], first["type"], first["sender"], first["dead"]) == ("hello", "note", None, None)
    assert (second["message"], second["sender"]) == ({"from": "a run"}, there.order)
    assert [row["id"] for row in mailbox(at_store, "mail", "--after", str(first["seq"]))] == [second["id"]]
    page = at_store("messages", "list", "mail", "--limit", "1").stdout
    assert "outside" in page and '"hello"' in page and f"more: --after {first['seq']}\n" in page
    assert "--after" not in at_store("messages", "list", "mail", "--limit", "2").stdout
    assert at_store("messages", "list", "tea").stdout == "no messages wait on thread tea\n"


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", [("list", "mail"), ("dead",)])
def test_a_page_fits_its_width(at_store: Run, command: tuple[str, ...], columns: int) -> None:
    page = at_store("messages", *command, columns=columns).stdout

    assert max(cell_len(line) for line in page.splitlines()) <= columns


def test_a_message_is_sent_under_the_name_of_its_json_or_of_the_type_that_is_given(
    at_store: Run, there: Asked, tmp_path: Path
) -> None:
    path = tmp_path / "message.json"
    path.write_text("[1, 2]")

    plain = at_store("messages", "send", "tea", '{"a": 1}')
    at_store("messages", "send", "tea", "--file", str(path))
    at_store("messages", "send", "tea", "-", said='"hello"')
    typed = at_store("messages", "send", "mail", '{"item": "tea"}', "--label", "Order", "--json")

    assert "is in the mailbox of thread tea; nothing runs there now" in plain.stdout
    assert [(row["type"], row["message"]) for row in mailbox(at_store, "tea")] == [
        ("dict", {"a": 1}), ("list", [1, 2]), ("str", "hello"),
    ]  # fmt: skip
    sent = json.loads(typed.stdout)
    assert sent == {"id": mailbox(at_store, "mail")[-1]["id"], "thread_id": "mail"}
    assert mailbox(at_store, "mail")[-1]["type"] == "Order"
    state = json.loads(at_store("runs", "show", there.reader, "--json").stdout)["state"]
    assert state == "queued", "who waited for an Order is woken"


@pytest.mark.parametrize("label", [(), ("--label", "Order")])
def test_a_message_with_a_key_arrives_once(at_store: Run, label: tuple[str, ...]) -> None:
    def send(key: str) -> str:
        result = at_store("messages", "send", "tea", '{"a": 1}', "--key", key, *label)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    first, again, other = send("k1"), send("k1"), send("k2")

    assert first == again == f"{first.split()[0]} has arrived in the mailbox of thread tea\n"
    assert [row["id"] for row in mailbox(at_store, "tea")] == [first.split()[0], other.split()[0]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("mail", "hello"), Exit.USAGE, "the message is not JSON"),
        (("mail",), Exit.USAGE, "neither is given"),
        (("mail", "1", "--label", ""), Exit.USAGE, "label"),
        (("mail", "1", "--key", ""), Exit.USAGE, "key"),
        (("mail", "1", "--key", "", "--label", "Order"), Exit.USAGE, "key"),
        (("nobody", "1"), Exit.NOT_FOUND, "perdure threads list"),
    ],
)
def test_what_cannot_be_sent_is_refused(at_store: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = at_store("messages", "send", *arguments)

    assert (result.exit_code, result.stdout) == (code, "") and said in result.stderr


@pytest.mark.parametrize("label", [(), ("--label", "Order")])
def test_a_full_mailbox_is_a_conflict(at_store: Run, monkeypatch: pytest.MonkeyPatch, label: tuple[str, ...]) -> None:
    monkeypatch.setattr("perdure.core.limits.MAILBOX_MAX", 2)

    result = at_store("messages", "send", "mail", "1", *label)

    assert result.exit_code == Exit.CONFLICT and "mailbox of thread 'mail'" in result.stderr


def test_a_dead_letter_is_listed_with_its_reason_and_can_be_put_back(at_store: Run, there: Asked) -> None:
    page = at_store("messages", "dead").stdout
    (document,) = json.loads(at_store("messages", "dead", "--json").stdout)
    of_others = at_store("messages", "dead", "--thread", "tea").stdout

    assert there.dead in page and "it has no item" in page and f"perdure messages replay {there.dead}" in page
    assert (document["id"], document["dead"], document["message"]) == (there.dead, "it has no item", {"nope": 1})
    assert of_others == "no dead letters\n"
    replayed = at_store("messages", "replay", there.dead)
    assert replayed.stdout == f"{there.dead} is in the mailbox of thread mail again, as the last of it\n"
    assert mailbox(at_store, "mail")[-1]["id"] == there.dead
    gone = at_store("messages", "replay", there.dead)
    assert gone.exit_code == Exit.NOT_FOUND and "perdure messages dead" in gone.stderr


def test_a_thread_shows_its_mail_and_its_questions(at_store: Run, there: Asked) -> None:
    mail = at_store("threads", "show", "mail").stdout
    two = at_store("threads", "show", "two").stdout
    document = json.loads(at_store("threads", "show", "two", "--json").stdout)

    assert "2 messages: perdure messages list mail" in mail
    assert "1 dead letter: perdure messages dead --thread-id mail" in mail
    assert all(f"perdure interrupts show {name}" in two for name in there.two)
    assert (document["state"], document["mailbox"], document["dead_letters"]) == ("response", 0, 0)
    assert [row["id"] for row in document["questions"]] == list(there.two)


def test_the_doctor_says_what_waits_for_people_and_finds_nothing_wrong(at_store: Run) -> None:
    result = at_store("doctor")

    assert result.exit_code == 0
    assert "7 open questions: `perdure interrupts list`" in result.stdout
    assert "1 dead letter: `perdure messages dead`" in result.stdout
