"""`python -m perdure.testing.model`: explore the protocol, and refute its wrong variants."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from perdure.testing.model import variants as ownership
from perdure.testing.model import waiting
from perdure.testing.model.explorer import Explored, Refuted, explore
from perdure.testing.model.ownership import Ownership
from perdure.testing.model.rules import Setup

WORLDS: Final[dict[str, Setup | waiting.Setup]] = {
    **ownership.WORLDS,
    **{f"waiting: {name}": world for name, world in waiting.WORLDS.items()},
}
LARGE_WORLDS: Final[dict[str, Setup | waiting.Setup]] = {
    **ownership.LARGE_WORLDS,
    **{f"waiting: {name}": world for name, world in waiting.LARGE_WORLDS.items()},
}
VARIANTS: Final[tuple[ownership.Variant | waiting.Variant, ...]] = (*ownership.VARIANTS, *waiting.VARIANTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or one story; 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model", description=__doc__)
    parser.add_argument("--show", metavar="VARIANT", choices=[each.name for each in VARIANTS], help="tell its story")
    parser.add_argument("--large", action="store_true", help="explore the large worlds too (some minutes)")
    given = parser.parse_args(arguments)
    if given.show:
        return _show(next(each for each in VARIANTS if each.name == given.show))
    worlds = {**WORLDS, **LARGE_WORLDS} if given.large else WORLDS
    print(f"{'the right protocol':<64} {'verdict':<32} {'states':>9} {'moves':>9} {'depth':>5}", flush=True)
    right = [_print_world(name, setup) for name, setup in worlds.items()]
    print(f"\n{'wrong variant':<64} {'verdict':<32} {'states':>9} {'':>9} {'trace':>5}", flush=True)
    refuted = [_print_variant(each) for each in VARIANTS]
    return 0 if all(right) and all(refuted) else 1


def _explore(setup: Setup | waiting.Setup) -> Explored | Refuted:
    return explore(Ownership(setup)) if isinstance(setup, Setup) else explore(waiting.Waiting(setup))


def _print_world(name: str, setup: Setup | waiting.Setup) -> bool:
    found = _explore(setup)
    if isinstance(found, Explored):
        print(f"{name:<64} {'holds':<32} {found.states:>9,} {found.moves:>9,} {found.depth:>5}", flush=True)
        return True
    print(f"{name:<64} BROKEN\n\n{found}\n", flush=True)
    return False


def _print_variant(variant: ownership.Variant | waiting.Variant) -> bool:
    found = _explore(variant.setup)
    if isinstance(found, Explored):
        print(f"{variant.name:<64} {'NOT REFUTED':<32} {found.states:>9,}", flush=True)
        return False
    verdict = f"refuted: {found.invariant}"
    print(f"{variant.name:<64} {verdict:<32} {found.states:>9,} {'':>9} {len(found.trace):>5}", flush=True)
    return found.invariant == variant.refuted_by


def _show(variant: ownership.Variant | waiting.Variant) -> int:
    found = _explore(variant.setup)
    print(f"{variant.name}: {variant.why}\n")
    print(found)
    return 0 if isinstance(found, Refuted) else 1


if __name__ == "__main__":
    sys.exit(main())
