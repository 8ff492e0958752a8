"""For tests of programs that use leases, and for tests of stores: public, and imported on demand.

* `ManualClock` stands still until a test moves it.
* `Faults` and `FaultyStore` make the way to any store unreliable; `FaultProxy` does it to a real
  server's connections.
* `Recorder`, `read`, `check` and `check_liveness` tell from histories of many processes whether
  leases were exclusive, tokens rose and waiters were served.
* `Torture` lets processes take turns on a store while they are killed and paused, and gives a
  `Verdict`: what `leasehold verify` does.
* `leasehold.testing.conformance` is the suite that every store must pass, also yours.
* `expire` and `steal` let happen to a lock what happens in real life.
* `leasehold.testing.plugin` gives pytest the fixtures `leasehold_client` and `leasehold_clock`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.testing.checker import Violation as Violation
    from leasehold.testing.checker import check as check
    from leasehold.testing.clock import ManualClock as ManualClock
    from leasehold.testing.faults import Faults as Faults
    from leasehold.testing.faults import FaultyStore as FaultyStore
    from leasehold.testing.history import Event as Event
    from leasehold.testing.history import merge as merge
    from leasehold.testing.history import read as read
    from leasehold.testing.liveness import check_liveness as check_liveness
    from leasehold.testing.mishaps import expire as expire
    from leasehold.testing.mishaps import steal as steal
    from leasehold.testing.proxy import FaultProxy as FaultProxy
    from leasehold.testing.recorder import Recorder as Recorder
    from leasehold.testing.torture.plan import TorturePlan as TorturePlan
    from leasehold.testing.torture.progress import TortureProgress as TortureProgress
    from leasehold.testing.torture.supervise import Torture as Torture
    from leasehold.testing.torture.verdict import Verdict as Verdict
else:
    from leasehold.lazy import from_modules

    # imported when asked for: the pytest plugin loads this package in every test run
    __all__, __getattr__, __dir__ = from_modules(
        __name__,
        {
            "leasehold.testing.checker": (
                "Violation",
                "check",
            ),
            "leasehold.testing.clock": ("ManualClock",),
            "leasehold.testing.faults": (
                "Faults",
                "FaultyStore",
            ),
            "leasehold.testing.history": (
                "Event",
                "merge",
                "read",
            ),
            "leasehold.testing.liveness": ("check_liveness",),
            "leasehold.testing.mishaps": (
                "expire",
                "steal",
            ),
            "leasehold.testing.torture.plan": ("TorturePlan",),
            "leasehold.testing.torture.progress": ("TortureProgress",),
            "leasehold.testing.torture.supervise": ("Torture",),
            "leasehold.testing.torture.verdict": ("Verdict",),
            "leasehold.testing.proxy": ("FaultProxy",),
            "leasehold.testing.recorder": ("Recorder",),
        },
    )
    del from_modules
