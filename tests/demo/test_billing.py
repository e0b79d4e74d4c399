"""The billing service, as a provider that the demo's agents charge."""

from __future__ import annotations

import asyncio
from http.client import RemoteDisconnected
from pathlib import Path

import pytest

from perdure.demo.billing import Declined, Entry, Receipt, charge, find, read_book, request
from perdure.demo.processes import BillingService
from tests.support.billing import serving


def entries(path: Path) -> list[tuple[str, str]]:
    return [(line.entry.value, line.key) for line in read_book(path)]


def test_a_key_is_charged_once_however_often_it_comes(tmp_path: Path) -> None:
    with serving(tmp_path / "book") as url:
        first, again = charge(url, "k1", "ann", 500), charge(url, "k1", "ann", 500)
        other = charge(url, "k2", "ann", 500)

    assert first == again == Receipt("receipt 1", 500)
    assert other.receipt == "receipt 2"
    assert entries(tmp_path / "book") == [("charge", "k1"), ("repeat", "k1"), ("charge", "k2")]


def test_a_key_that_comes_twice_at_once_is_charged_once(tmp_path: Path) -> None:
    async def both(url: str) -> list[Receipt]:
        return await asyncio.gather(*(asyncio.to_thread(charge, url, "k1", "ann", 500) for _ in range(2)))

    with serving(tmp_path / "book") as url:
        one, other = asyncio.run(both(url))

    assert one == other
    assert entries(tmp_path / "book") == [("charge", "k1"), ("repeat", "k1")]


def test_an_answer_that_is_lost_leaves_its_charge_in_the_book(tmp_path: Path) -> None:
    with serving(tmp_path / "book", lose_every=1) as url:
        with pytest.raises(RemoteDisconnected):
            charge(url, "k1", "ann", 500)

        assert find(url, "k1") == charge(url, "k1", "ann", 500) == Receipt("receipt 1", 500)

    assert entries(tmp_path / "book") == [("charge", "k1"), ("lost", "k1"), ("repeat", "k1")]


def test_the_service_says_of_a_key_that_it_never_saw_that_there_is_no_charge(tmp_path: Path) -> None:
    with serving(tmp_path / "book") as url:
        assert find(url, "k1") is None


def test_what_is_no_charge_is_declined_and_not_booked(tmp_path: Path) -> None:
    with serving(tmp_path / "book") as url:
        with pytest.raises(Declined) as declined:
            charge(url, "k1", "ann", -1)
        status, _ = request(url, "POST", "/charges", {"account": "ann", "cents": 1})
        charge(url, "k2", "ann", 500)
        with pytest.raises(Declined) as used:
            charge(url, "k2", "ben", 500)

    assert (declined.value.status_code, status, used.value.status_code) == (400, 400, 422)
    assert [line.key for line in read_book(tmp_path / "book") if line.entry is Entry.CHARGE] == ["k2"]


def test_a_service_that_was_killed_knows_its_charges_when_it_is_back(tmp_path: Path) -> None:
    async def lives() -> tuple[Receipt, Receipt | None]:
        first = BillingService(tmp_path)
        url = await first.begin(["--lose-every", "0"])
        receipt = await asyncio.to_thread(charge, url, "k1", "ann", 500)
        for process in first.processes:
            process.kill()
        (tmp_path / "billing.url").unlink()
        second = BillingService(tmp_path)
        try:
            return receipt, await asyncio.to_thread(find, await second.begin(), "k1")
        finally:
            second.end()

    receipt, found = asyncio.run(lives())

    assert found == receipt


def test_half_a_line_is_no_charge(tmp_path: Path) -> None:
    with serving(tmp_path / "book") as url:
        charge(url, "k1", "ann", 500)
    with (tmp_path / "book").open("ab") as book:
        book.write(b'{"entry": "charge", "key": "k')

    assert entries(tmp_path / "book") == [("charge", "k1")]
