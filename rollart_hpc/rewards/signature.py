"""How a request proves whom it is from: a bearer token, or a signature over time, idempotency key and body.

Client and server share this file. A signature is HMAC-SHA256 by the shared secret, in hexadecimal, over
``TIMESTAMP.KEY.SHA256-OF-BODY``. It holds for five minutes, so every try of a call is signed anew; what is repeated
within that time has the same key, and is answered from the cache of the server.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping

KEY_HEADER = "Idempotency-Key"
TIMESTAMP_HEADER = "X-Rollart-Timestamp"
SIGNATURE_HEADER = "X-Rollart-Signature"
_VALID_S = 300
_MAX_DIGITS = 20
"""Of a timestamp; Python reads no number of thousands of digits."""


def signed_headers(secret: str, key: str, body_sha256: str) -> dict[str, str]:
    """The headers that sign one request now."""
    timestamp = str(int(time.time()))
    return {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: _signature(secret, timestamp, key, body_sha256)}


def refusal(headers: Mapping[str, str], body: bytes, *, bearer: str | None, secret: str | None) -> str:
    """Why a request is not served; empty for one that may be. All that is configured must be right."""
    if bearer is not None and not _equal(headers.get("Authorization", ""), f"Bearer {bearer}"):
        return "expected the header Authorization with the right bearer token"
    if secret is None:
        return ""
    timestamp = headers.get(TIMESTAMP_HEADER, "")
    is_number = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= _MAX_DIGITS
    if not is_number or abs(time.time() - int(timestamp)) > _VALID_S:
        return f"expected the header {TIMESTAMP_HEADER} with the seconds since 1970, at most {_VALID_S} from now"
    expected = _signature(secret, timestamp, headers.get(KEY_HEADER, ""), sha256(body))
    if not _equal(headers.get(SIGNATURE_HEADER, ""), expected):
        return f"the header {SIGNATURE_HEADER} does not sign this time, key and body; is the secret the same?"
    return ""


def sha256(body: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(body).hexdigest()


def _signature(secret: str, timestamp: str, key: str, body_sha256: str) -> str:
    return hmac.new(secret.encode(), f"{timestamp}.{key}.{body_sha256}".encode(), hashlib.sha256).hexdigest()


def _equal(got: str, expected: str) -> bool:
    return hmac.compare_digest(got.encode(), expected.encode())
