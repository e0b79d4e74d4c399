"""Retries: what is tried again, how often, and when."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import RETRY_AFTER_S_MAX
from perdure.core.retry import Retry, RetryIn, Stop, decide
from perdure.core.transience import is_transient, retry_after_s, status
from perdure.errors import NotSerializable, UsageError
from tests.support.ids import plainly

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
NOW_US = int(NOW.timestamp() * 1_000_000)


class Failed(Exception):
    """An exception with whatever attributes a library gives it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


class Nasty(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("not now")


def foreign(module: str, name: str, base: type[Exception] = Exception) -> type[Any]:
    """A class like one of a library that is not installed."""
    return type(name, (base,), {"__module__": module})


def answered(code: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://example.com")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(code, headers=names, request=request))


def delay(error: BaseException, *, attempt: int = 1, random: float = 0.5, **policy: Any) -> float:
    decision = decide(Retry(**policy), attempt=attempt, error=error, random=random, now_us=NOW_US)
    assert isinstance(decision, RetryIn), decision
    return decision.delay_s


# -- which ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        BrokenPipeError(),
        socket.gaierror(-3, "try again"),
        OSError(113, "no route"),
        http.client.RemoteDisconnected(""),
        httpx.ConnectTimeout(""),
        httpx.ReadError(""),
        httpx.RemoteProtocolError(""),
        answered(429),
        answered(408),
        answered(425),
        answered(500),
        answered(599),
        Failed(status=503),
        Failed(status_code="429"),
        Failed(code=HTTPStatus.BAD_GATEWAY),
        Failed(response=Failed(status=502)),
        Failed(response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
        urllib.error.URLError(TimeoutError()),
        foreign("openai", "APIConnectionError")(),
        foreign("myapp", "Wrapped", foreign("openai._exceptions", "APITimeoutError"))(),
        foreign("requests.exceptions", "ConnectionError")(),
        foreign("aiohttp.client_exceptions", "ServerDisconnectedError", foreign("aiohttp", "ClientConnectionError"))(),
        foreign("urllib3.exceptions", "ReadTimeoutError", foreign("urllib3.exceptions", "TimeoutError"))(),
        ExceptionGroup("", [TimeoutError(), answered(500)]),
    ],
    ids=plainly,
)
def test_what_may_go_away_by_itself_is_tried_again(error: Exception) -> None:
    assert is_transient(error)
    assert isinstance(decide(Retry(), attempt=1, error=error, random=0.5, now_us=NOW_US), RetryIn)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        FileNotFoundError(2, "no"),
        answered(400),
        answered(404),
        answered(301),
        Failed(status_code=422, response=Failed(status=500)),
        Failed(status=True),
        Failed(code="rate_limit_exceeded"),
        Failed(code=1006),
        Nasty(),
        foreign("openai", "APITimeoutError", Failed)(status=401),
        foreign("myapp", "TimeoutException")(),
        httpx.UnsupportedProtocol(""),
        foreign("aiohttp", "ClientConnectorCertificateError", foreign("aiohttp", "ClientSSLError", ConnectionError))(),
        ssl.SSLCertVerificationError(),
        urllib.error.URLError("unknown url type"),
        ExceptionGroup("", [TimeoutError(), ValueError()]),
        UsageError("no"),
    ],
    ids=plainly,
)
def test_everything_else_is_final(error: Exception) -> None:
    assert not is_transient(error)
    assert decide(Retry(), attempt=1, error=error, random=0.5, now_us=NOW_US) == Stop("final")


def test_retry_on_adds_classes_and_final_goes_before() -> None:
    policy = Retry(retry_on=(ValueError, KeyError), final=UnicodeError)

    assert isinstance(decide(policy, attempt=1, error=KeyError(), random=0, now_us=0), RetryIn)
    assert isinstance(decide(policy, attempt=1, error=TimeoutError(), random=0, now_us=0), RetryIn)
    assert decide(policy, attempt=1, error=UnicodeError(), random=0, now_us=0) == Stop("final")
    assert decide(Retry(final=TimeoutError), attempt=1, error=TimeoutError(), random=0, now_us=0) == Stop("final")


def test_a_function_decides_alone() -> None:
    policy = Retry(retry_on=lambda error: "again" in str(error))

    assert isinstance(decide(policy, attempt=1, error=ValueError("again"), random=0, now_us=0), RetryIn)
    assert decide(policy, attempt=1, error=TimeoutError(), random=0, now_us=0) == Stop("final")


def test_a_mistake_in_the_program_and_control_flow_are_final_whatever_the_policy() -> None:
    policy = Retry(retry_on=BaseException)

    for error in (NotSerializable("no", path="$"), KeyboardInterrupt(), SystemExit(503)):
        assert decide(policy, attempt=1, error=error, random=0, now_us=0) == Stop("final")


def test_attempts_are_bounded() -> None:
    answers = [decide(Retry(), attempt=n, error=TimeoutError(), random=0.5, now_us=0) for n in (1, 2, 3, 4)]

    assert answers == [RetryIn(1.0), RetryIn(2.0), Stop("attempts"), Stop("attempts")]


# -- when ----------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6), st.floats(1, 1000), st.floats(0, 1e6),
    st.floats(0, 1),
)  # fmt: skip
def test_a_delay_is_finite_and_within_its_jitter(
    attempt: int, random: float, first: float, factor: float, longest: float, jitter: float
) -> None:
    policy = Retry(attempts=10_001, delay_s=first, factor=factor, max_delay_s=longest, jitter=jitter)

    decision = decide(policy, attempt=attempt, error=TimeoutError(), random=random, now_us=0)

    assert isinstance(decision, RetryIn)
    assert 0 <= decision.delay_s <= longest * (1 + jitter)


def test_delays_grow_to_their_maximum() -> None:
    delays = [delay(TimeoutError(), attempt=n, attempts=99, delay_s="2s", max_delay_s="1m") for n in range(1, 8)]

    assert delays == [2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(
    "error",
    [
        answered(429, retry_after="30"),
        answered(429, retry_after_ms="30000"),
        answered(503, retry_after=format_datetime(NOW + timedelta(seconds=30), usegmt=True)),
        Failed(status=429, retry_after=30),
        Failed(status=429, retry_after=timedelta(seconds=30)),
        Failed(status=429, retry_after="30.0"),
        Failed(status=429, headers={"RETRY-AFTER": "30"}),
        Failed(response=Failed(status=429, headers={b"Retry-After": b"30"})),
        Failed(response={"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "30"}}}),
    ],
    ids=plainly,
)
def test_c24_retry_after_is_a_floor_however_it_is_said(error: Exception) -> None:
    assert retry_after_s(error, NOW_US) == 30.0
    assert delay(error, random=0.0) == 30.0
    assert 30.0 < delay(error, random=0.99) < 30.3
    assert delay(error, attempt=2, attempts=3, delay_s=100, max_delay_s=1000, random=0.0) >= 30.0


def test_retry_after_is_read_from_the_headers_of_the_standard_library() -> None:
    headers = Message()
    headers["Retry-After"] = "30"

    with urllib.error.HTTPError("https://example.com", 429, "", headers, None) as error:
        assert (status(error), retry_after_s(error, NOW_US)) == (429, 30.0)


@pytest.mark.parametrize("value", ["soon", "", "-5", "nan", "inf", "Wed, 99 Foo 2026", None, [], True, "1" * 500])
def test_an_unintelligible_retry_after_is_ignored(value: Any) -> None:
    assert delay(Failed(status=429, retry_after=value)) == 1.0


def test_a_date_that_has_passed_asks_for_nothing() -> None:
    assert delay(answered(429, retry_after="Sun, 06 Nov 1994 08:49:37 GMT")) == 1.0


def test_retry_after_is_believed_up_to_a_limit() -> None:
    assert delay(answered(429, retry_after="999999999"), random=0.0) == RETRY_AFTER_S_MAX


# -- nonsense ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        {"attempts": 0}, {"attempts": -1}, {"attempts": 2.0}, {"attempts": True}, {"attempts": "3"}, {"delay_s": -1},
        {"delay_s": "soon"}, {"max_delay_s": float("nan")}, {"factor": 0.5}, {"factor": float("nan")}, {"factor": 1e9},
        {"jitter": -0.1}, {"jitter": 1.1}, {"jitter": None}, {"retry_on": "ValueError"}, {"retry_on": int},
        {"retry_on": [ValueError]}, {"final": 3}, {"final": (ValueError, "x")},
    ],
    ids=plainly,
)  # fmt: skip
def test_a_nonsensical_policy_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(policy)).removesuffix("_s").split("_")[-1]):
        Retry(**policy)


def test_a_policy_is_a_value() -> None:
    assert Retry(delay_s="1m") == Retry(delay_s=60) != Retry()
    assert hash(Retry(delay_s="1m")) == hash(Retry(delay_s=60))


class _Unpaired:
    def items(self) -> list[int]:
        return [1, 2]


class _Closed(dict[str, str]):
    def items(self) -> Any:
        raise RuntimeError("closed")


class _Nameless:
    def __str__(self) -> str:
        raise ValueError("no name")


@pytest.mark.parametrize("headers", [dict, 5, _Unpaired(), _Closed(a="b"), {_Nameless(): "30"}], ids=plainly)
def test_headers_that_are_none_say_nothing_and_raise_nothing(headers: Any) -> None:
    for error in (Failed(headers=headers), Failed(response=Failed(headers=headers))):
        assert retry_after_s(error, NOW_US) is None
