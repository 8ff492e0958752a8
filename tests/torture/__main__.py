"""`python -m tests.torture simulate | processes | servers`: the full runs; tests do small ones."""

import argparse
import signal
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from dibs.testing import Torture, TorturePlan, TortureProgress, Violation
from tests.torture.bugs import BUGS
from tests.torture.servers import STORES, run_servers
from tests.torture.simulate import RUN, Result, simulate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    sim = verbs.add_parser("simulate", help="all primitives in virtual time, bad weather")
    sim.add_argument("--cycles", type=int, default=1_000_000)
    sim.add_argument("--seed", type=int, default=1, help="of the first history")
    sim.add_argument("--jobs", type=int, default=2)
    sim.add_argument("--bug", choices=sorted(BUGS), help="plant one; it must be found")
    sim.set_defaults(run=run_simulation)
    real = verbs.add_parser("processes", help="real processes, kill -9 and SIGSTOP")
    real.add_argument("--url", help="the store; a fresh SQLite file unless given")
    real.add_argument("--cycles", type=int, default=20_000)
    real.add_argument("--kills", type=int, default=100)
    real.add_argument("--stops", type=int, default=200)
    real.add_argument("--workers", type=int, default=6)
    real.add_argument("--ttl", type=float, default=0.6)
    real.add_argument("--seed", type=int, default=1)
    real.set_defaults(run=run_processes)
    servers = verbs.add_parser(
        "servers", help="real processes, and faults of the server and network"
    )
    servers.add_argument("--store", choices=sorted(STORES), default="etcd")
    servers.add_argument("--cycles", type=int, default=250_000)
    servers.add_argument("--faults", type=int, default=200)
    servers.add_argument(
        "--every", type=float, default=20.0, help="seconds between two, on average"
    )
    servers.add_argument("--seconds", type=float, default=3600)
    servers.add_argument("--workers", type=int, default=6)
    servers.add_argument("--tasks", type=int, default=4, help="of each worker")
    servers.add_argument("--seed", type=int, default=1)
    servers.set_defaults(run=run_servers)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are stopped on every way out
    raise SystemExit(arguments.run(arguments))


def run_simulation(arguments: argparse.Namespace) -> int:
    """As many histories as it takes, each checked by itself."""
    size = min(RUN, arguments.cycles)
    seeds = range(arguments.seed, arguments.seed + -(-arguments.cycles // size))
    total = Result()
    with ProcessPoolExecutor(arguments.jobs) as pool:
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
    return report(total.violations, bit=total.stale > 0)


def listed(counts: Counter[str]) -> str:
    """The greatest first."""
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


def run_processes(arguments: argparse.Namespace) -> int:
    """As many rounds as it takes, an hour at most."""

    def watch(progress: TortureProgress) -> None:
        enough = (
            progress.cycles >= arguments.cycles
            and progress.kills >= arguments.kills
            and progress.pauses >= arguments.stops
        )
        if enough and progress.doing == "faults":
            torture.stop()

    with tempfile.TemporaryDirectory() as name:
        url = arguments.url or f"sqlite:///{Path(name) / 'leases.db'}"
        plan = TorturePlan(
            seconds=3600, processes=arguments.workers, ttl=arguments.ttl, seed=arguments.seed
        )
        torture = Torture(url, plan, progress=watch)
        verdict = torture.run()
    print(verdict)
    return 0 if verdict.outcome == "clean" else 1


def report(violations: list[Violation], *, bit: bool) -> int:
    """Tell the verdict; the exit code of the run."""
    print(f"{len(violations)} violations")
    if not bit:
        print("no stale write reached the unfenced resource: the faults did not bite")
    return 1 if violations or not bit else 0


if __name__ == "__main__":
    main()
