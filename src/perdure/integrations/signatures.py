"""Signatures of webhooks, as https://www.standardwebhooks.com has them: who gets one can tell that it is yours, whole,
and of just now.

What is signed is `id.timestamp.body`, with HMAC-SHA256 and a secret that both sides have: `whsec_` and base64. A
message may carry several signatures, so that a secret can be changed while both are in use.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.errors import PerdureError, UsageError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

PREFIX: Final = "whsec_"
VERSION: Final = "v1"

SECRET_BYTES_MIN: Final = 16
"""The specification wants 24 to 64. There are shorter ones in use; these are the shortest that nobody guesses."""

TOLERANCE_S: Final = 300.0
"""How old a message may be, or how far ahead the sender's clock: who has recorded one cannot send it for ever."""

SIGNATURES_MAX: Final = 20
"""Signatures looked at in one message."""

Secrets = str | Sequence[str]


class InvalidSignature(PerdureError):
    """A webhook is not from whom it says it is, was changed, or is too old."""


def secret_bytes(secrets: Secrets) -> tuple[bytes, ...]:
    """The secrets as bytes. Raises `UsageError`, which does not repeat them."""
    given: object = secrets
    if isinstance(given, bytes | bytearray) or not isinstance(given, Sequence):
        raise UsageError(
            f"A webhook's secret is text, {PREFIX} and base64, or a list of such, not a {type(given).__name__}."
        )
    texts = (secrets,) if isinstance(secrets, str) else tuple(secrets)
    if not texts:
        raise UsageError("An empty list of secrets signs nothing; leave the secret out for webhooks without signature.")
    return tuple(_decoded(text) for text in texts)


def sign(body: bytes, *, id: str, at_s: int, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers of a message."""
    content = b"%b.%d.%b" % (id.encode(), at_s, body)
    signatures = " ".join(f"{VERSION},{_signature(content, secret)}" for secret in secrets)
    return {ID: id, TIMESTAMP: str(at_s), SIGNATURE: signatures}


def verify(
    payload: bytes,
    headers: Mapping[str, str],
    secret: Secrets,
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> str:
    """Whether a webhook is genuine: for whoever receives what a `Webhook` sends.

    `payload` is the request's body as it came, byte for byte; of several secrets one must fit. Returns the message's
    id (the delivery's key): the same message may come more than once, and always has the same. Raises
    `InvalidSignature`.
    """
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise UsageError("payload is the request's body as bytes, as it came: text, or JSON, has lost what is signed.")
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise UsageError(
            "headers is a mapping of text by text; dict(request.headers) makes one of most frameworks' own."
        )
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        raise InvalidSignature(f"The webhook has no header {missing[0]}.")
    at_s = _timestamp(given[TIMESTAMP])
    if abs((time.time() if now_s is None else now_s) - at_s) > tolerance_s:
        raise InvalidSignature(f"The webhook's timestamp is more than {tolerance_s:g} seconds off.")
    content = b"%b.%b.%b" % (_bytes(given[ID]), given[TIMESTAMP].encode(), payload)
    expected = [_signature(content, key).encode() for key in secret_bytes(secret)]
    found = [text.partition(",") for text in given[SIGNATURE].split()[:SIGNATURES_MAX]]
    fits = [
        hmac.compare_digest(_bytes(signature), one)
        for version, _, signature in found
        if version == VERSION
        for one in expected
    ]
    if not any(fits):
        raise InvalidSignature("The webhook's signature does not fit its content.")
    return given[ID]


def _bytes(text: str) -> bytes:
    """What somebody sent, whatever a server has made of bytes that are no text."""
    return text.encode(errors="surrogatepass")


def _timestamp(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidSignature("The webhook's timestamp is no number of seconds.")
    return int(text)


def _signature(content: bytes, secret: bytes) -> str:
    return base64.b64encode(hmac.digest(secret, content, "sha256")).decode()


def _decoded(text: str) -> bytes:
    if not isinstance(text, str):
        raise UsageError(f"A webhook's secret is text, {PREFIX} and base64, not a {type(text).__name__}.")
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"A webhook's secret is {PREFIX} and base64, and this one is not.") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise UsageError(
            f"A webhook's secret has {len(secret)} bytes, which can be guessed; give 24 to 64 random ones, as base64."
        )
    return secret
