"""Signatures of webhooks, and who verifies them."""

from __future__ import annotations

import base64

import pytest

from perdure.integrations import InvalidSignature, verify
from perdure.integrations.signatures import secret_bytes, sign

# The example of the specification's own libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT_S = 1_614_265_330
PAYLOAD = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

HEADERS = {"Webhook-Id": ID, "Webhook-Timestamp": str(AT_S), "Webhook-Signature": SIGNATURE}


def test_it_is_the_signature_that_the_specification_gives() -> None:
    signed = sign(PAYLOAD, id=ID, at_s=AT_S, secrets=secret_bytes(SECRET))
    assert signed["webhook-signature"] == SIGNATURE


def test_a_genuine_message_is_known_by_its_id() -> None:
    assert verify(PAYLOAD, HEADERS, SECRET, now_s=AT_S + 299) == ID


def test_a_signature_among_others_is_found() -> None:
    several = {**HEADERS, "Webhook-Signature": f"v1a,AAAA v1,AAAA v1,ä {SIGNATURE}"}
    other = "whsec_" + base64.b64encode(b"quite another secret").decode()
    assert verify(PAYLOAD, several, [other, SECRET], now_s=AT_S) == ID


@pytest.mark.parametrize(
    ("payload", "headers", "now_s"),
    [
        (b'{"test": 2432232315}', HEADERS, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Id": "msg_other"}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Timestamp": str(AT_S + 1)}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Timestamp": "soon"}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Signature": SIGNATURE.replace("v1,", "v2,")}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Signature": "v1,"}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Signature": ""}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Signature": "v1,\udcff"}, AT_S),
        (PAYLOAD, {**HEADERS, "Webhook-Id": "\udcff"}, AT_S),
        (PAYLOAD, HEADERS, AT_S + 301),
        (PAYLOAD, HEADERS, AT_S - 301),
        (PAYLOAD, {}, AT_S),
    ],
)
def test_what_is_changed_late_or_unsigned_is_refused(payload: bytes, headers: dict[str, str], now_s: float) -> None:
    with pytest.raises(InvalidSignature):
        verify(payload, headers, SECRET, now_s=now_s)


def test_another_secret_does_not_fit() -> None:
    with pytest.raises(InvalidSignature):
        verify(PAYLOAD, HEADERS, base64.b64encode(b"quite another secret").decode(), now_s=AT_S)
