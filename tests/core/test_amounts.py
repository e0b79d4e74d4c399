"""What is metered and budgeted, from the numbers that people give to whole ones, and back."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest

from perdure.core.budgets import Budget, Cost, amounts_of, in_users_units, limits_of
from perdure.core.durations import microseconds
from perdure.core.meters import UNIT, attributes_bytes, billionths


class Float64(float):
    """As a library's scalar is: a float, that shows itself otherwise."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)!r})"


def test_a_librarys_own_float_is_the_number_that_it_is() -> None:
    tenth = Float64(0.1)

    assert billionths(tenth) == 100_000_000
    assert limits_of(Budget(usd=tenth, seconds=tenth)) == limits_of(Budget(usd=0.1, seconds=0.1))
    assert amounts_of(Cost(usd=tenth, seconds=tenth)) == amounts_of(Cost(usd=0.1, seconds=0.1))
    assert attributes_bytes({"score": tenth}) == b'{"score":0.1}'


def test_seconds_are_kept_to_the_nearest_microsecond() -> None:
    assert [us for us in range(200_000) if microseconds(us / 1_000_000) != us] == []
    assert limits_of(Budget(seconds=0.000_033)).us == 33 == amounts_of(Cost(seconds="0.000033s")).us
    assert microseconds("0.0000004s") == 0


@pytest.mark.parametrize("us", [1, 33, 999_999, 12_345_678_901, 3_153_599_999_999_999])
def test_seconds_that_a_budget_shows_are_those_that_it_takes(us: int) -> None:
    shown = in_users_units(limits_of(Budget(seconds=us / 1_000_000)))["seconds"]
    assert shown is not None and microseconds(shown) == us


def test_dollars_may_be_given_to_the_billionth() -> None:
    exact = Decimal("8999999999.999999999")
    assert limits_of(Budget(usd=exact)).usd == 8_999_999_999_999_999_999


def test_a_quantity_is_exact_whatever_decimal_context_its_caller_has() -> None:
    with localcontext(prec=6):
        found = [billionths(each) for each in (Decimal("1234.567891"), 123456789, 1234.567891, Decimal("0.1234567895"))]

    assert found == [1_234_567_891_000, 123_456_789 * UNIT, 1_234_567_891_000, 123_456_790]
