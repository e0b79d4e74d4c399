"""The store conformance suite: a store is right when it passes.

Meaning lives here, as scenarios whose names are the promises; `perdure.store.memory` is the reference they were
first run against. An author of a store subclasses `StoreConformance` in a test file and says how to make one:

    from perdure.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def _path(self, tmp_path):
            self.path = tmp_path / "runs.db"

        def store(self):                            # new, not open, on data of its own
            return MyStore(self.path)

        async def advance_s(self, store, seconds):  # move the store's clock, or move its rows' times back
            store.clock.advance(seconds)

Every scenario becomes one plain test method: pytest and unittest collect them alike, and no plugin is needed. Optional
hooks: `open_store` (where emptying the data takes a query), `crash` (how an open store dies; closing it is the
default), `thread_queue_max`, `mailbox_max` and `lane_max` (how to lower these limits; patching
`limits.THREAD_QUEUE_MAX`, `limits.MAILBOX_MAX` and `limits.LANE_MAX` is the default), `durable = False` for a store
whose data end with its last user, `has_sql = False` for one whose `transact` refuses. For readable failures, put
`pytest.register_assert_rewrite("perdure.testing.conformance")` into `conftest.py`.

The shape, one suite that every driver runs, is that of River's `riverdrivertest`.
"""

from __future__ import annotations

from perdure.testing.conformance.agreement import Agreement
from perdure.testing.conformance.billing import Billing
from perdure.testing.conformance.budgets import Budgeting
from perdure.testing.conformance.cancelling import Cancelling
from perdure.testing.conformance.children import Parenting
from perdure.testing.conformance.claiming import Claiming
from perdure.testing.conformance.committing import Committing
from perdure.testing.conformance.deadlines import Deadlines
from perdure.testing.conformance.deliveries import Delivering
from perdure.testing.conformance.displacing import Displacing
from perdure.testing.conformance.effects import Acting
from perdure.testing.conformance.forking import Forking
from perdure.testing.conformance.harness import Bench, Harness, scenario
from perdure.testing.conformance.interrupts import Asking
from perdure.testing.conformance.keying import Keying
from perdure.testing.conformance.ledger import Auditing
from perdure.testing.conformance.living import Living
from perdure.testing.conformance.mailboxes import Mailing
from perdure.testing.conformance.meeting import Meeting
from perdure.testing.conformance.metering import Metering
from perdure.testing.conformance.operating import Operating
from perdure.testing.conformance.orphaning import Orphaning
from perdure.testing.conformance.ownership import Ownership
from perdure.testing.conformance.parking import Parking
from perdure.testing.conformance.racing import Racing
from perdure.testing.conformance.reading import Hinting, Reading
from perdure.testing.conformance.recovery import Recovery
from perdure.testing.conformance.relaying import Relaying
from perdure.testing.conformance.repeating import Repeating
from perdure.testing.conformance.spending import Spending
from perdure.testing.conformance.starting import Starting
from perdure.testing.conformance.transacting import Transacting
from perdure.testing.conformance.undoing import Undoing
from perdure.testing.conformance.vouching import Vouching
from perdure.testing.conformance.waiting import Waiting
from perdure.testing.conformance.waking import Waking

__all__ = ["Bench", "Harness", "StoreConformance", "scenario"]


class StoreConformance(
    Starting,
    Claiming,
    Committing,
    Repeating,
    Ownership,
    Recovery,
    Operating,
    Racing,
    Reading,
    Hinting,
    Living,
    Parking,
    Waiting,
    Waking,
    Asking,
    Mailing,
    Cancelling,
    Parenting,
    Deadlines,
    Displacing,
    Forking,
    Meeting,
    Acting,
    Vouching,
    Auditing,
    Undoing,
    Delivering,
    Relaying,
    Orphaning,
    Billing,
    Metering,
    Budgeting,
    Spending,
    Keying,
    Transacting,
    Agreement,
):
    """Every scenario. Subclass it, give it a `store()` and an `advance_s()`."""
