"""Simulation: whole lives of a system, in virtual time, on a seed.

A world has several workers, clients, an operator and a public that answers, writes, cancels and forks; they run the
real runtime and the real app, over a store in memory or a real SQLite file. Between each process and the database is
a wire on which everything goes wrong that can: messages are slow, late or lost, processes die around a write, stop
and wake as zombies, clocks jump, the store goes away. After every write a witness compares the rows with those before
and says what may not have happened. Nor may a service of a worker log a bug, although it goes on. When the storm is
over, everything must come to its end, with results that the log explains.

    python -m perdure.testing.simulation --seeds 500
    python -m perdure.testing.simulation --seed 4711 --store sqlite --story

`loop.py` has the virtual event loop, `world.py` processes and time, `wire.py` messages and their fates, `weather.py`
how often which fault comes, `nature.py` what happens to processes. `playbook.py` and `steps.py` have the agents,
those that wait in `sleepers.py`, `askers.py`, `correspondents.py` and `families.py`, those with effects in
`buyers.py`, those that hand over in `couriers.py` and those that run under budgets in `spenders.py`; `roles.py` says
what must come of one. `provider.py` is what effects act on, `recipients.py` who gets what is handed over. `orders.py`
has what is started, `people.py`, `public.py`, `auditor.py` and `stewards.py` who does it and looks after it.
`witness.py` sees all of it through `eyes.py`, `rules/` say what must hold, `readiness.py` what must not be left
undone, `account.py` what must have come of it, `ledger.py` that the provider and the ledger tell the same story,
`outgoings.py` that the outbox, the bills and their recipients do. `simulation.py` puts them together. After
FoundationDB's simulator and TigerBeetle's VOPR.

The checker is checked: `tests/simulation/mutations.py` breaks the runtime and the stores in one place at a time, and
each of these breaks has to show in some seed.
"""

from __future__ import annotations

from perdure.testing.simulation.report import Report, StoreKind
from perdure.testing.simulation.simulation import simulate
from perdure.testing.simulation.weather import CALM, STORM, Weather

__all__ = ["CALM", "STORM", "Report", "StoreKind", "Weather", "simulate"]
