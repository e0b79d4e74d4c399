"""`python -m perdure.testing.model`: explore the protocol, and refute its wrong variants."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from perdure.testing.model.explorer import Explored, Refuted, explore
from perdure.testing.model.ownership import Ownership
from perdure.testing.model.rules import Setup
from perdure.testing.model.variants import LARGE_WORLDS, VARIANTS, WORLDS, Variant


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or one story; 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model", description=__doc__)
    parser.add_argument("--show", metavar="VARIANT", choices=[each.name for each in VARIANTS], help="tell its story")
    parser.add_argument("--large", action="store_true", help="explore the large worlds too (some minutes)")
    given = parser.parse_args(arguments)
    if given.show:
        return _show(next(each for each in VARIANTS if each.name == given.show))
    worlds = {**WORLDS, **LARGE_WORLDS} if given.large else WORLDS
    print(f"{'the right protocol':<56} {'verdict':<40} {'states':>9} {'moves':>9} {'depth':>5}", flush=True)
    right = [_print_world(name, setup) for name, setup in worlds.items()]
    print(f"\n{'wrong variant':<56} {'verdict':<40} {'states':>9} {'':>9} {'trace':>5}", flush=True)
    refuted = [_print_variant(each) for each in VARIANTS]
    return 0 if all(right) and all(refuted) else 1


def _print_world(name: str, setup: Setup) -> bool:
    found = explore(Ownership(setup))
    if isinstance(found, Explored):
        print(f"{name:<56} {'holds':<40} {found.states:>9,} {found.moves:>9,} {found.depth:>5}", flush=True)
        return True
    print(f"{name:<56} BROKEN\n\n{found}\n", flush=True)
    return False


def _print_variant(variant: Variant) -> bool:
    found = explore(Ownership(variant.setup))
    if isinstance(found, Explored):
        print(f"{variant.name:<56} {'NOT REFUTED':<40} {found.states:>9,}", flush=True)
        return False
    verdict = f"refuted: {found.invariant}"
    print(f"{variant.name:<56} {verdict:<40} {found.states:>9,} {'':>9} {len(found.trace):>5}", flush=True)
    return found.invariant == variant.refuted_by


def _show(variant: Variant) -> int:
    found = explore(Ownership(variant.setup))
    print(f"{variant.name}: {variant.why}\n")
    print(found)
    return 0 if isinstance(found, Refuted) else 1


if __name__ == "__main__":
    sys.exit(main())
