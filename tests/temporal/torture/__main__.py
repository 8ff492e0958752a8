"""`python -m tests.temporal.torture --mode slot|fair`: the full runs; tests do small ones."""

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from tests.temporal.torture.bugs import BUGS
from tests.temporal.torture.plan import MODES, Plan
from tests.temporal.torture.torture import torture


def main() -> int:
    """The exit code: 0 if everything was tried and no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.temporal.torture", description=__doc__)
    parser.add_argument(
        "--mode", choices=MODES, help="slot, unless a bug is better found elsewhere"
    )
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--bug", choices=sorted(BUGS), default="", help="plant one; it must be found"
    )
    parser.add_argument("--folder", type=Path, help="keeps the histories")
    chosen = vars(parser.parse_args())
    folder, bug = chosen.pop("folder"), BUGS.get(chosen["bug"])
    chosen["mode"] = chosen["mode"] or (bug.mode if bug else "slot")
    chosen["kinds"] = bug.kinds if bug else ()
    chosen["shapes"] = bug.shapes if bug else ()
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(
        Runtime(telemetry=TelemetryConfig(logging=quiet))
    )  # the server is away at times
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers are stopped on every way out
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        verdict = asyncio.run(torture(Plan(**chosen), place))
    print(verdict)
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
