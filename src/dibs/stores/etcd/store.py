"""The store, and what it promises."""

from collections.abc import Callable

from dibs.clock import Clock
from dibs.model import Capabilities
from dibs.stores.cas.cells import Cells
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.store import CasStore
from dibs.stores.etcd.cells import EtcdCells
from dibs.stores.etcd.url import read_url


class EtcdStore(CasStore):
    """Leases in an etcd cluster, over the JSON gateway of its client port (etcd 3.4 or later).

    | URL | |
    |---|---|
    | `etcd://127.0.0.1:2379` | one member |
    | `etcd://a:2379,b:2379,c:2379` | a cluster: if one member is gone, the next is asked |
    | `etcds://locks:secret@etcd.example:2379` | with TLS, and a user |
    | `etcd://127.0.0.1:2379/team-a` | keys below `team-a/` instead of `dibs/` |

    Options: `cafile` (the certificates to trust), `certfile` and `keyfile` (a client certificate), `skew`
    (seconds by which the members' clocks may differ, default 10).

    etcd has no clock that could end leases. Waiters watch for how long an entry stays unchanged. A lone try
    uses the date of etcd's answers (`stores/cas/clock.py`). `clock` replaces this process's own in tests.
    """

    capabilities: Capabilities = Capabilities(
        scope="cluster",
        clock=False,
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._settings = read_url(url)
        self.skew: float = self._settings.skew
        super().__init__(self._settings.shown, clock=clock)

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> Cells:
        return EtcdCells(self._settings, clock, now)
