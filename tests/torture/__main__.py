"""`python -m tests.torture simulate | processes`: the full runs; tests do small ones."""

import argparse
import signal
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.torture.bugs import BUGS
from tests.torture.processes import STORES, run_processes
from tests.torture.simulate import RUN, Result, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    verbs = parser.add_subparsers(required=True)
    sim = verbs.add_parser("simulate", help="all primitives in virtual time, bad weather")
    sim.add_argument("--cycles", type=int, default=1_000_000)
    sim.add_argument("--bug", choices=sorted(BUGS), help="plant one; it must be found")
    sim.set_defaults(run=run_simulation)
    real = verbs.add_parser(
        "processes", help="real processes, killed and paused as their server is"
    )
    real.add_argument("--store", choices=sorted(STORES), default="sqlite")
    real.add_argument("--cycles", type=int, default=250_000)
    real.add_argument("--faults", type=int, default=200)
    real.set_defaults(run=run_processes)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are stopped on every way out
    return int(arguments.run(arguments))


def run_simulation(arguments: argparse.Namespace) -> int:
    """As many histories as it takes, each checked by itself."""
    size = min(RUN, arguments.cycles)
    seeds = range(arguments.seed, arguments.seed + -(-arguments.cycles // size))
    total = Result()
    with ProcessPoolExecutor() as pool:
        one = partial(simulate, cycles=size, bug=arguments.bug)
        for seed, result in zip(seeds, pool.map(one, seeds), strict=True):
            total.add(result)
            for violation in result.violations[:3]:
                print(f"seed {seed}: {violation}", flush=True)
    print(f"{total.cycles.total():,} cycles: {listed(total.cycles)}")
    print(f"{total.faults.total():,} faults: {listed(total.faults)}")
    print(f"{total.virtual:,.0f} virtual seconds in {total.real:,.0f} s of CPU")
    print(f"stale writes that only fencing stopped: {total.stale:,}")
    print(f"all histories together: {total.digest[:16]}")
    print(f"{len(total.violations)} violations")
    if not total.stale:
        print("no stale write reached the unfenced resource: the faults did not bite")
    return 1 if total.violations or not total.stale else 0


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
