"""The suite that every store must pass: ours, and yours.

    from dibs.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        def make_store(self, clock, tmp_path):
            return MyStore("mine://somewhere", clock=clock)

pytest then runs every case for asyncio and for threads. What a store does not promise in its `capabilities`
is skipped, with a message. See `Suite` for stores with a clock of their own.
"""

import pytest

_PARTS = (
    *("batches", "clients", "contending", "holding", "notifications", "observer", "queueing"),
    *("reading", "sharing", "users", "vectors", "world"),
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from dibs.testing.conformance.batches import Batches  # noqa: E402 -- rewritten from here on
from dibs.testing.conformance.clients import Clients  # noqa: E402
from dibs.testing.conformance.contending import Contending  # noqa: E402
from dibs.testing.conformance.holding import HoldingCases, Revoking  # noqa: E402
from dibs.testing.conformance.notifications import NotificationCases  # noqa: E402
from dibs.testing.conformance.queueing import Queueing  # noqa: E402
from dibs.testing.conformance.reading import Naming, ReadingCases  # noqa: E402
from dibs.testing.conformance.sharing import Sharing, TokenCases  # noqa: E402
from dibs.testing.conformance.suite import Suite, case, needing  # noqa: E402
from dibs.testing.conformance.vectors import Vectors  # noqa: E402
from dibs.testing.conformance.world import World  # noqa: E402


class BackendConformance(
    HoldingCases,
    Sharing,
    Queueing,
    NotificationCases,
    Revoking,
    TokenCases,
    Naming,
    ReadingCases,
    Batches,
    Vectors,
    Contending,
    Clients,
):
    """Every case: of the port (see `dibs.stores.port`), and of locks and semaphores over it."""


__all__ = ["BackendConformance", "Suite", "World", "case", "needing"]
