"""Bounds of the values in commands, the same for `/v1/locks` and `/v1/batch`."""

from collections.abc import Callable

from dibs.model import MANY, Acquire, Command, Release, Renew, Resize, Revoke
from dibs.server.limits import MAX_ID, MAX_OWNER, MAX_TEXT, Limits
from dibs.server.placement.registry import SLACK

AHEAD = SLACK // 2
"""Microseconds that a floor may be ahead of this server's clock. A move adds twice as many to tokens, so
that they rise with every move."""

_ID = ("id", MAX_ID)

_TEXTS: dict[type, tuple[tuple[str, int], ...]] = {
    Acquire: (_ID, ("owner", MAX_OWNER), ("note", MAX_TEXT), ("trace", MAX_ID)),
    Renew: (_ID,),
    Release: (_ID,),
    Resize: (_ID,),
    Revoke: (("reason", MAX_TEXT),),
}
"""Texts of commands, and the bytes that they may have."""


class CommandBounds:
    """Checks commands against the limits of a server. The ledger itself refuses what makes no sense."""

    def __init__(self, limits: Limits, stamp: Callable[[], int]) -> None:
        """`stamp`: see `Clock`."""
        self._max_capacity = limits.max_capacity
        self._stamp = stamp
        ttl = ("ttl", limits.min_ttl, limits.max_ttl, " seconds")
        self._numbers: dict[type, tuple[tuple[str, float, float, str], ...]] = {
            Acquire: (
                ttl,
                ("waiter_ttl", 0, limits.max_ttl, " seconds"),
                ("lock_delay", 0, limits.max_ttl, " seconds"),
                ("priority", -(1 << 31), (1 << 31) - 1, ""),  # upgrades have the highest one
            ),
            Renew: (ttl,),
            Release: (
                ("retain", 0, limits.max_keep, " seconds"),
                ("tombstone", 0, limits.max_ttl, " seconds"),
            ),
            Resize: (("units", 1, MANY, ""), ("seq", 0, (1 << 53) - 1, "")),
        }

    def flaw(self, command: Command) -> str | None:
        """Describe the value that is out of bounds; None if there is none."""
        kind = type(command)
        for field, least, most, unit in self._numbers.get(kind, ()):
            value = getattr(command, field)
            if not least <= value <= most:
                return f"`{field}` must be {least:.16g} to {most:.16g}{unit}, not {value:.16g}"
        for field, length in _TEXTS.get(kind, ()):
            text = getattr(command, field)
            if 4 * len(text) > length:
                size = len(text.encode(errors="surrogatepass"))
                if size > length:
                    shown = "`owner` (client-id)" if field == "owner" else f"`{field}`"
                    return f"{shown} must be at most {length} bytes long, not {size}"
            elif field == "id" and not text:
                return "`id` must not be empty"
        if isinstance(command, Acquire):
            return self._size_flaw(command) or self._floor_flaw(command)
        if isinstance(command, Revoke) and not command.reason.strip():
            return "give a `reason`: the holder and the audit log get it"
        return None

    def _size_flaw(self, command: Acquire) -> str | None:
        """A capacity that its kind does not have: other holders depend on it."""
        kind, units, capacity = command.key.partition(b":")[0], command.units, command.capacity
        if kind == b"semaphore":
            most = self._max_capacity
            if not (1 <= units <= most and 1 <= capacity <= most):
                return f"`units` and `capacity` must be 1 to {most}"
        elif kind == b"rwlock":
            if capacity != MANY or units not in (1, MANY - 1, MANY):
                return (
                    f"of an rwlock, `capacity` must be {MANY}, and `units` 1 to read, {MANY} to write or "
                    f"{MANY - 1} to upgrade"
                )
        elif units != 1 or capacity != 1:
            return f"of a {kind.decode()}, `units` and `capacity` must be 1"
        return None

    def _floor_flaw(self, command: Acquire) -> str | None:
        """A floor far ahead of the clocks: tokens would fall when the directory of the key moves."""
        if command.floor and not 0 <= command.floor <= self._stamp() + AHEAD:
            return (
                f"floor is {command.floor}, which is more than {AHEAD / 6e7:.0f} minutes ahead of the "
                "server's clock, in microseconds since 1970"
            )
        return None
