"""One command, one table, everything in the same run."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import (
    acceptance,
    costs,
    crowd,
    cycles,
    dripping,
    fifo,
    handoff,
    leases,
    queues,
    table,
)
from benchmarks.place import disk_folder
from benchmarks.plan import Plan
from benchmarks.results import Results
from benchmarks.servers import Servers

SECTIONS = (cycles, handoff, fifo, queues, crowd, leases, dripping, costs)


def main() -> None:
    given = _arguments()
    parent = Path(given.dir) if given.dir else disk_folder()
    folder = Path(tempfile.mkdtemp(prefix="dibs-bench-", dir=parent))
    servers = Servers(folder)
    patterns = tuple(given.pattern)
    plan = Plan(given.rounds, given.seconds, patterns, folder, given.leases, given.uvloop, servers)
    # a warning is of no use here, and telling it would cost time in the middle of a measurement
    os.environ["PYTHONWARNINGS"] = "ignore"
    about, results, begun = table.machine(folder), Results(), time.monotonic()
    try:
        with servers:
            for section in SECTIONS:
                print(f"{section.SECTION} …", file=sys.stderr, flush=True)
                section.measure(plan, results)
                print(f"  after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about |= {"took": round(time.monotonic() - begun), "rounds": plan.rounds}
    about["load_after"] = os.getloadavg()[0]
    verdicts = acceptance.judge(results)
    if given.json:
        print(table.as_json(about, results, [verdict._asdict() for verdict in verdicts]))
        return
    text = "\n".join([table.told(about), table.as_text(results), acceptance.as_text(verdicts)])
    print(text)
    if given.save:
        table.save(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "pattern", nargs="*", help="only rows whose section/setting/contestant has this in it"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long a turn lasts")
    parser.add_argument("--leases", type=int, default=100_000, help="how many one process holds")
    parser.add_argument("--uvloop", action="store_true", help="Dibs on uvloop as well")
    parser.add_argument("--dir", help="where files are kept meanwhile; on a disk, to be honest")
    parser.add_argument("--save", action="store_true", help="put the table into the README here")
    parser.add_argument("--json", action="store_true", help="every round's value, for programs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
