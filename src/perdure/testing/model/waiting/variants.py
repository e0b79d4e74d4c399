"""The worlds in which the right protocol must hold, and the wrong variants that must not.

A wrong variant breaks one rule, in the smallest world in which that shows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from perdure.testing.model.explorer import ENDS
from perdure.testing.model.waiting import invariants as named
from perdure.testing.model.waiting import outside as o
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import RIGHT, Rules, Setup
from perdure.testing.model.waiting.state import Budget

LOSS: Final = Budget(losses=1)
GLITCH: Final = Budget(glitches=1)

ASKED: Final = Setup((s.ANSWER,), (o.ANN,))
TWO_ANSWERS: Final = Setup((s.ANSWER,), (o.ANN, o.BOB))
EXPIRING: Final = Setup((s.ANSWER,), (o.ANN,), timed=(s.ANSWER,))
MAIL: Final = Setup((s.MESSAGE,), (o.SENDER,))
MAIL_IN_TIME: Final = Setup((s.MESSAGE,), (o.SENDER,), timed=(s.MESSAGE,))
FAMILY: Final = Setup((s.CHILD,), (o.CHILD,))
ROOM: Final = Setup((s.ROOM,), (o.TAKER,))
TIMER: Final = Setup((s.TIMER,), timed=(s.TIMER,))
CANCELLED: Final = Setup((s.ANSWER,), (o.ANN, o.CANCELLER))
HELD_CHILD: Final = Setup((s.CHILD,), (o.CHILD, o.HOLDER, o.OPERATOR))

BOTH: Final = Budget(losses=1, glitches=1)

FAMILY_CANCELLED: Final = replace(FAMILY, actors=(o.CHILD, o.CANCELLER))
GIVEN_UP: Final = Setup((s.ANSWER, s.TIMER), (o.ANN,), timed=(s.TIMER,), race=True)
CLEANING_UP: Final = replace(CANCELLED, shielded=True)
ANSWER_AND_MAIL: Final = Setup((s.ANSWER, s.MESSAGE), (o.ANN, o.SENDER), timed=(s.MESSAGE,))
ANSWER_AND_CHILD: Final = Setup((s.ANSWER, s.CHILD), (o.ANN, o.CHILD))
MAIL_AND_CHILD: Final = Setup((s.MESSAGE, s.CHILD), (o.SENDER, o.CHILD))
EVERYTHING: Final = Setup((s.ANSWER, s.MESSAGE, s.CHILD), (o.ANN, o.SENDER, o.CHILD))

WORLDS: Final[dict[str, Setup]] = {
    "an answer, statements apart, a loss": replace(ASKED, statements_apart=True, budget=LOSS),
    "an answer, a glitch": replace(ASKED, budget=GLITCH),
    "two answers and a time, statements apart": replace(TWO_ANSWERS, timed=(s.ANSWER,), statements_apart=True),
    "an answer or its time, a loss": replace(EXPIRING, budget=LOSS),
    "a message, a loss": replace(MAIL, budget=LOSS),
    "a message, a glitch": replace(MAIL, budget=GLITCH),
    "a message or its time, statements apart": replace(MAIL_IN_TIME, statements_apart=True),
    "two messages": replace(MAIL, actors=(o.SENDER, o.SECOND_SENDER)),
    "a child, a loss": replace(FAMILY, budget=LOSS),
    "a child, a glitch": replace(FAMILY, budget=GLITCH),
    "a child and a cancellation, statements apart": replace(FAMILY_CANCELLED, statements_apart=True),
    "a child with a lower id and a cancellation": replace(FAMILY_CANCELLED, child_row_first=True),
    "a child that is held": HELD_CHILD,
    "room, a loss": replace(ROOM, budget=LOSS),
    "room, a glitch": replace(ROOM, budget=GLITCH),
    "a time, a loss": replace(TIMER, budget=LOSS),
    "an answer and a cancellation, a loss": replace(CANCELLED, budget=LOSS),
    "an answer and a cancellation, cleaning up": replace(CLEANING_UP, statements_apart=True),
    "an answer, given up for a time": GIVEN_UP,
    "an answer, and a message or its time": ANSWER_AND_MAIL,
    "an answer and a child": ANSWER_AND_CHILD,
    "a message and a child": MAIL_AND_CHILD,
}
"""Explored in every run of the tests."""

LARGE_WORLDS: Final[dict[str, Setup]] = {
    **{
        f"{name}, {what}": replace(world, budget=budget)
        for name, world in {
            "two answers and a time": replace(TWO_ANSWERS, timed=(s.ANSWER,)),
            "a message or its time": MAIL_IN_TIME,
            "two messages": replace(MAIL, actors=(o.SENDER, o.SECOND_SENDER)),
            "a child and a cancellation": FAMILY_CANCELLED,
            "a child with a lower id and a cancellation": replace(FAMILY_CANCELLED, child_row_first=True),
            "a child that is held": HELD_CHILD,
            "an answer and a cancellation, cleaning up": CLEANING_UP,
            "an answer, given up for a time": GIVEN_UP,
            "an answer, and a message or its time": ANSWER_AND_MAIL,
            "an answer and a child": ANSWER_AND_CHILD,
            "a message and a child": MAIL_AND_CHILD,
        }.items()
        for what, budget in (("a loss", LOSS), ("a glitch", GLITCH))
    },
    **{
        f"{name}, a loss and a glitch": replace(world, budget=BOTH)
        for name, world in {
            "an answer": ASKED,
            "a message": MAIL,
            "a child": FAMILY,
            "room": ROOM,
            "a time": TIMER,
        }.items()
    },
    "a message, statements apart, a loss": replace(MAIL, statements_apart=True, budget=LOSS),
    "a child, statements apart, a loss": replace(FAMILY, statements_apart=True, budget=LOSS),
    "an answer, a message and a child": EVERYTHING,
}
"""Explored by hand: `python -m perdure.testing.model --large` takes some minutes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A protocol that somebody might have written instead."""

    name: str
    breaks: tuple[str, ...]
    why: str
    """What goes wrong."""
    refuted_by: str
    world: Setup

    @property
    def setup(self) -> Setup:
        """Its world, with its rules."""
        return replace(self.world, rules=broken(*self.breaks))


def broken(*rules: str) -> Rules:
    """The right rules, but for these."""
    assert {field.name for field in fields(Rules)}.issuperset(rules)
    return replace(RIGHT, **dict.fromkeys(rules, False))


VARIANTS: Final = (
    Variant(
        "park-looks-too-early",
        ("park_looks_last",),
        "The parking looks, then waits for the run's row, which an answer holds; it has seen nothing, and parks.",
        named.NO_LOST_WAKE_UP,
        ASKED,
    ),
    Variant(
        "no-common-lock",
        ("park_locks_mailbox",),
        "A sender and a parking share no lock: each looks before the other has committed.",
        named.NO_LOST_WAKE_UP,
        MAIL,
    ),
    Variant(
        "parked-unaware",
        ("park_heeds_cancel",),
        "The cancellation came while the run was running; it is parked all the same, and nobody will wake it for that.",
        named.NO_LOST_WAKE_UP,
        CANCELLED,
    ),
    Variant(
        "time-forgotten",
        ("park_keeps_times",),
        "The parked run cannot be claimed when its time comes.",
        named.NO_LOST_WAKE_UP,
        TIMER,
    ),
    Variant(
        "unwound-first",
        ("park_before_unwinding",),
        "The code is unwound before the run is parked, and takes its waits back on its way out.",
        named.NO_LOST_WAKE_UP,
        ASKED,
    ),
    Variant(
        "park-of-an-old-claim",
        ("commit_compares_fences",),
        "The copy of a parking arrives when the run is in other hands, and parks it there.",
        named.NO_STALE_WRITE,
        replace(ASKED, budget=GLITCH),
    ),
    Variant(
        "parked-twice",
        ("fence_follows_locks",),
        "Two copies of a parking have compared the fence; the run changes hands, and then the other one parks it.",
        named.NO_STALE_WRITE,
        replace(ASKED, budget=GLITCH),
    ),
    Variant(
        "posted-late",
        ("post_locks_run",),
        "A post bounces, and the run changes hands; then an earlier copy, which had compared its fence, is written.",
        named.NO_STALE_WRITE,
        replace(ROOM, budget=GLITCH),
    ),
    Variant(
        "parked-late",
        ("doubt_hands_back",),
        "Sent again, the parking was refused, since something had come, and the code went on; then the first copy "
        "arrives, and parks the run under it.",
        named.NO_LOST_WAKE_UP,
        replace(ASKED, budget=GLITCH),
    ),
    Variant(
        "state-seen-before-the-lock",
        ("waker_looks_last",),
        "The answer sees the run running, and waits for its row, which the parking holds; then it wakes nobody.",
        named.NO_LOST_WAKE_UP,
        ASKED,
    ),
    Variant(
        "answered-and-then-woken",
        ("waker_wakes_at_once",),
        "The answer is on disk and the wake-up is not yet, when whoever gave it dies.",
        named.NO_LOST_WAKE_UP,
        ASKED,
    ),
    Variant(
        "sender-looks-too-early",
        ("sender_looks_last",),
        "The sender looks for parked receivers, then waits for the mailbox's row, which the parking holds.",
        named.NO_LOST_WAKE_UP,
        MAIL,
    ),
    Variant(
        "waiter-not-locked",
        ("end_locks_waiters",),
        "The child's end takes the parent for running, and does not wait for its parking to commit.",
        named.NO_LOST_WAKE_UP,
        FAMILY,
    ),
    Variant(
        "one-look-for-waiters",
        ("end_looks_again",),
        "The parent begins to wait between the child's look for waiters and its lock.",
        named.NO_LOST_WAKE_UP,
        FAMILY,
    ),
    Variant(
        "latecomer-not-locked",
        ("latecomers_are_locked",),
        "A waiter that came between is woken if it is seen parked: and it is just being parked.",
        named.NO_LOST_WAKE_UP,
        FAMILY,
    ),
    Variant(
        "target-not-locked",
        ("open_locks_target",),
        "The parent begins to wait, and is parked, between the child's last look for waiters and its commit.",
        named.NO_LOST_WAKE_UP,
        FAMILY,
    ),
    Variant(
        "time-passed-over",
        ("claim_heeds_times",),
        "Nobody claims the waiting run whose time has come.",
        ENDS,
        TIMER,
    ),
    Variant(
        "waits-seen-too-early",
        ("claim_reads_waits_last",),
        "The claim hears of a wait that has been closed since: the execution believes it open, and is parked for ever.",
        named.NO_LOST_WAKE_UP,
        replace(ROOM, budget=LOSS),
    ),
    Variant(
        "hint-trusted",
        ("idle_workers_poll",),
        "The hint is lost, and nobody asks for the run that was woken.",
        ENDS,
        replace(ASKED, budget=GLITCH),
    ),
    Variant(
        "second-answer-wins",
        ("answer_is_conditional",),
        "The second answer is written over the first, and both are told that theirs counts.",
        named.ONE_ANSWER,
        TWO_ANSWERS,
    ),
    Variant(
        "question-seen-too-early",
        ("answer_looks_last",),
        "Two answers have both seen the question open, and wait for the run's row.",
        named.ONE_ANSWER,
        TWO_ANSWERS,
    ),
    Variant(
        "answered-too-late",
        ("answer_looks_at_time",),
        "An answer is taken after its time, while nobody has marked the question yet.",
        named.IN_TIME,
        EXPIRING,
    ),
    Variant(
        "expired-though-answered",
        ("expiry_is_conditional",),
        "The execution has seen that the time had come; the answer was just before it, and is written over.",
        named.ONE_ANSWER,
        EXPIRING,
    ),
    Variant(
        "closed-and-then-recorded",
        ("close_is_one_commit",),
        "The wait is gone and the message taken, and no record says so, when the worker dies.",
        named.MESSAGE_ONCE,
        replace(MAIL, budget=LOSS),
    ),
    Variant(
        "wait-left-behind",
        ("close_deletes_wait",),
        "The wait is still there when its record is: ready for ever, so that its run is never parked again.",
        named.ONE_RECORD,
        ASKED,
    ),
    Variant(
        "recorded-unread",
        ("reads_before_recording",),
        "The child was held, and was sent on before its parent looked: which records an end that is none.",
        named.TRUE_RECORD,
        HELD_CHILD,
    ),
    Variant(
        "sent-twice",
        ("message_is_known",),
        "The sender's answer was lost; sent again, the message is there twice.",
        named.MESSAGE_ONCE,
        replace(MAIL, budget=GLITCH),
    ),
    Variant(
        "received-twice",
        ("received_is_known",),
        "The message was received before it was sent again, and arrives as a new one.",
        named.MESSAGE_ONCE,
        replace(MAIL, budget=GLITCH),
    ),
    Variant(
        "completed-though-cancelled",
        ("end_heeds_cancel",),
        "The canceller was told that the run will end as cancelled.",
        named.CANCEL_STANDS,
        CANCELLED,
    ),
    Variant(
        "cancellation-seen-too-early",
        ("end_looks_last",),
        "The end has seen no cancellation, and waits for the run's row, which the cancellation holds.",
        named.CANCEL_STANDS,
        CANCELLED,
    ),
    Variant(
        "parent-not-locked",
        ("start_locks_parent",),
        "The start sees no cancellation, the cancellation sees no child; both commit.",
        named.CANCEL_GOES_DOWN,
        replace(FAMILY, actors=(o.CHILD, o.CANCELLER)),
    ),
    Variant(
        "tree-read-too-early",
        ("tree_is_read_last",),
        "The cancellation sees no child, and waits for the parent's row, which the child's start holds.",
        named.CANCEL_GOES_DOWN,
        replace(FAMILY, actors=(o.CHILD, o.CANCELLER)),
    ),
    Variant(
        "started-twice",
        ("start_has_key",),
        "The worker died between the child's start and the record of it; the next one starts another.",
        named.ONE_CHILD,
        replace(FAMILY, budget=LOSS),
    ),
    Variant(
        "started-by-nobody",
        ("start_compares_fences",),
        "A start that was under way when its worker lost the run arrives when the run has ended.",
        named.NO_STALE_WRITE,
        replace(FAMILY, actors=(o.CHILD, o.CANCELLER), budget=GLITCH),
    ),
)
"""Every one must be refuted, by the invariant it names."""
