"""Every bound in one place, each with its reason. Reaching one is a typed error or a visible state (G12)."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PAYLOAD_BYTES_MAX: Final = 64 * MIB
"""One recorded value. Larger things belong into an object store, with their address in the record."""

INLINE_BYTES_MAX: Final = 32 * KIB
"""A value up to this size lies in its checkpoint's row; a larger one becomes a content-addressed blob."""

ID_CHARS_MAX: Final = 512
"""A thread id or a start key: long enough for a path or a URL, short enough for an index entry."""

NAME_CHARS_MAX: Final = 128
"""The name of an agent, a step, a queue, a worker or a deployment."""

KEY_CHARS_MAX: Final = 1024
"""A step's structural key: scopes nest, and each level adds a few characters."""

ERROR_CHARS_MAX: Final = 16 * KIB
"""A recorded traceback keeps its head and its tail up to this length."""

SCHEMA_BYTES_MAX: Final = 64 * KIB
"""The JSON schema of an answer: it lies in its question's row."""

TAGS_MAX: Final = 32
"""Tags on one run."""

PRIORITY_MAX: Final = 1_000_000
"""Priorities run from -PRIORITY_MAX to PRIORITY_MAX; a higher one is claimed first."""

THREAD_QUEUE_MAX: Final = 10_000
"""Unfinished runs on one thread. A producer that outruns its agent is told so, instead of filling the disk."""

MAILBOX_MAX: Final = 10_000
"""Messages in one thread's mailbox. A sender that outruns its receiver waits or is told so."""

LANE_MAX: Final = 100_000
"""Deliveries that wait in one lane of the outbox (a sink and a partition). Agents that outrun a sink are told so."""

MESSAGE_MEMORY_US: Final = 3_600_000_000
"""How long a received message is known by its id at least, so that a `send` whose answer was lost can be repeated."""

NEVER_US: Final = 2**62
"""The `ready_at` of a run that waits without a time: later than any."""

RECOVERIES_MAX: Final = 5
"""Worker deaths in a row, without one new checkpoint between, after which a run is held as poison."""

SUSPECT_STRIKES: Final = 3
"""From this many such deaths on a run is a suspect, and so is a delivery that was in the hands of as many: a worker has
one suspect of each kind at a time, so that one that kills its workers takes no innocent neighbours with it."""

ATTEMPTS_DEFAULT: Final = 3
"""Tries of a step when its policy says nothing."""

STEP_TIMEOUT_S: Final = 3600.0
"""Start-to-finish limit of one attempt when the step declares none: a hung call ends, visibly."""

EFFECT_TIMEOUT_S: Final = 300.0
"""The same of an effect: for so long a cancellation waits for one that hangs."""

VERIFY_ATTEMPTS: Final = 5
"""How often a provider is asked what became of an effect, before the effect's other policy is followed."""

UNDO_ATTEMPTS: Final = 5
"""How often an undo is tried, whatever it raises, before it is left for a person."""

METERS_MAX: Final = 1_000
"""Of one try: they wait in memory for its record, and go into one commit with it."""

AMOUNT_MAX: Final = 2**62 - 1
"""Of what is spent or reserved of a budget in all; more is as much as that. Two of them fit a column of 64 bits. As
dollars it is more than four billion."""

RESERVED_MAX: Final = 2**58
"""What is noted as reserved by one try, at most, so that a sum of some is exact. As dollars it is 288 million."""

DELIVERY_TIMEOUT_S: Final = 30.0
"""How long a sink may take for one delivery."""

ANSWER_TIMEOUT_S: Final = 30.0
"""How long a source's broker may take to hear that something is taken, or rejected."""

DELIVERIES_AT_ONCE: Final = 32
"""Of one sink, in one worker's hands: one that hangs does not hold up the others."""

COMMIT_ROWS_MAX: Final = 2_000
"""Changes in one transaction: past this the gain per row is gone and the latency grows."""

COMMIT_BYTES_MAX: Final = 16 * MIB
"""Payload bytes in one transaction (a single larger change still goes, alone)."""

PENDING_ROWS_MAX: Final = 20_000
"""Changes that wait for their commit in one process; past this, steps wait (back-pressure, not loss)."""

PENDING_BYTES_MAX: Final = 256 * MIB
"""The same in payload bytes: while the store is away, large results must not fill the memory."""

SUPER_STEPS_AHEAD_MAX: Final = 64
"""Super-steps that an agent may be ahead of the disk; past that the next one waits: so many fit into a commit's time.
After a worker's death the tries of so many are put on disk before their bodies begin."""

CLAIM_ROWS_MAX: Final = 500
"""Runs, or deliveries to one sink, taken by one claim."""

LIST_ROWS_MAX: Final = 1_000
"""Rows in one page of a listing."""

ID_BLOCK: Final = 1_000
"""Ids that a process reserves at a time: numbers are handed out without a round trip each."""

CLEAN_UP_S: Final = 60.0
"""How long the code of a cancelled or overdue run may go on in one worker's hands, parked time not counted: its caller
has been told that it is over."""

LEASE_S: Final = 15.0
"""How long a worker may be silent before another takes its runs."""

STALL_LIMIT_S: Final = 900.0
"""How long user code may block a worker's event loop before its lease is no longer renewed."""

DURATION_S_MAX: Final = 100 * 365 * 86_400.0
"""A hundred years: a longer timer, delay or time-out is a mistake in a unit."""

RETRY_AFTER_S_MAX: Final = 86_400.0
"""A server's Retry-After is believed up to a day; what asks for more is out of order, and a person should look."""
