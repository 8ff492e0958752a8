"""What the tables need now and then, off everybody's path: keys that lie idle are thrown out."""

from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Statement
from dibs.stores.postgres.wire import Wire

EVERY = 2048
"""Commands of this process between two upkeeps."""

LIMIT = 512
"""So many keys are looked at in one upkeep, at most."""

SWEEP = Statement("dibs_sweep", f"SELECT dibs.sweep({LIMIT})")


def note(site: Site, commands: int, wire: Wire | None) -> None:
    """So many commands were applied: sweep if it is time, on this connection, and wait for nothing."""
    site.work += commands
    if site.work >= EVERY and wire is not None and not wire.is_cut:
        site.work = 0
        try:
            wire.begin(lambda: wire.send(SWEEP, ()))
        except Exception:  # noqa: BLE001  # it broke: whoever calls next finds out, and not we
            wire.cut()
