"""How long a worker may believe in its lease.

The store compares leases on its own clock. A worker that asked for a renewal at `asked_at` (its monotonic clock)
knows that the store counted from some later moment, so the lease ends no earlier than `asked_at + lease_s`. It
trusts the lease until `margin_s` before that and then dispatches nothing new: the window is conservative however
slow the answer was. Trust only spares useless work; the fence is what keeps a stale worker from writing.
After River's leadership terms (`internal/leadership/doc.go`).
"""

from __future__ import annotations

RENEWALS_PER_LEASE = 3
"""Two renewals may fail before the lease runs out."""

MARGIN_SHARE = 0.2
"""Of the lease, kept back for what is in flight when trust ends."""


def trust_until(asked_at: float, lease_s: float) -> float:
    """Monotonic time until which a renewal asked for at `asked_at` is believed."""
    return asked_at + lease_s - MARGIN_SHARE * lease_s


def renew_every_s(lease_s: float) -> float:
    """Seconds between renewals."""
    return lease_s / RENEWALS_PER_LEASE
