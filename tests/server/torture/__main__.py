"""`python -m tests.server.torture --store redis --cycles 100000`: two servers, faults in and before them.

A Redis or a PostgreSQL of its own, two `dibs serve` over it, a failing way to each and a balancer before
both; clients with the library and without, which are killed and paused too. What everybody saw in a run that
broke a promise stays in the folder that it names; `--folder` keeps what servers wrote. `--bug` plants one.

A call has a sixth of the ttl: on a machine that is busy with other things try `--ttl 3`.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from dibs.testing import TorturePlan
from tests.server.torture.bugs import BUGS
from tests.server.torture.trial import KINDS, tortured


def main() -> int:
    """The exit code: 0 if everything was tried and no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.torture", description=__doc__)
    parser.add_argument("--store", choices=("redis", "postgres"), default="redis")
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spare-clients", action="store_true", help="strike none of them")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--bug", choices=sorted(BUGS), default="")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all is ended on every way out
    sizes = ("seconds", "cycles", "processes", "ttl", "seed")
    plan = TorturePlan(**{name: getattr(chosen, name) for name in sizes}, primitives=KINDS)
    how = {"spare_clients": chosen.spare_clients, "bug": chosen.bug}
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with tortured(folder, chosen.store, plan, **how) as torture:
            verdict = torture.run()
    print(verdict)
    counts = torture.storm.counts
    faults = ", ".join(f"{name} {number:,}" for name, number in counts.most_common())
    print(f"Servers and the ways to them: {counts.total():,} faults: {faults}")
    print(f"In line: {torture.judged_by.turns:,} turns looked at, in the order of arrival")
    broken = verdict.violations or verdict.trouble
    # where clients are spared no holder was struck, and no late write can show that faults bite
    return 0 if not broken and (chosen.spare_clients or verdict.outcome == "clean") else 1


if __name__ == "__main__":
    raise SystemExit(main())
