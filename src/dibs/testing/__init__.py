"""Public tools for tests of programs that use leases, and of stores. Imported on demand.

* `ManualClock` stands still until a test moves it.
* `Faults` and `FaultyStore` make the way to any store unreliable; `FaultProxy` does it to a real
  server's connections.
* `Recorder`, `read`, `check` and `check_liveness` check histories of many processes: leases were
  exclusive, tokens rose, waiters were served.
* `Torture` lets processes take turns on a store while they are killed and paused, and gives a
  `Verdict`: what `dibs verify` does.
* `dibs.testing.conformance` is the suite that every store must pass, also yours.
* `expire` and `steal` simulate the loss of a lease.
* `dibs.testing.plugin` gives pytest the fixtures `dibs_client` and `dibs_clock`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.testing.checker import Violation as Violation
    from dibs.testing.checker import check as check
    from dibs.testing.clock import ManualClock as ManualClock
    from dibs.testing.faults import Faults as Faults
    from dibs.testing.faults import FaultyStore as FaultyStore
    from dibs.testing.faults import expire as expire
    from dibs.testing.faults import steal as steal
    from dibs.testing.history import HistoryEvent as HistoryEvent
    from dibs.testing.history import merge as merge
    from dibs.testing.history import read as read
    from dibs.testing.liveness import check_liveness as check_liveness
    from dibs.testing.proxy import FaultProxy as FaultProxy
    from dibs.testing.recorder import Recorder as Recorder
    from dibs.testing.torture.plan import TorturePlan as TorturePlan
    from dibs.testing.torture.rounds import TortureProgress as TortureProgress
    from dibs.testing.torture.supervise import Torture as Torture
    from dibs.testing.torture.verdict import Verdict as Verdict
else:
    from dibs.lazy import from_modules

    # imported when asked for: the pytest plugin loads this package in every test run
    __all__, __getattr__, __dir__ = from_modules(
        __name__,
        {
            "dibs.testing.checker": ("Violation", "check"),
            "dibs.testing.clock": ("ManualClock",),
            "dibs.testing.faults": ("Faults", "FaultyStore", "expire", "steal"),
            "dibs.testing.history": ("HistoryEvent", "merge", "read"),
            "dibs.testing.liveness": ("check_liveness",),
            "dibs.testing.proxy": ("FaultProxy",),
            "dibs.testing.recorder": ("Recorder",),
            "dibs.testing.torture.plan": ("TorturePlan",),
            "dibs.testing.torture.rounds": ("TortureProgress",),
            "dibs.testing.torture.supervise": ("Torture",),
            "dibs.testing.torture.verdict": ("Verdict",),
        },
    )
    del from_modules
