"""Reentrant locks: a depth counter on one lease.

A task or thread that holds a reentrant lock acquires it again without asking the store. It gets the same
lease, one level deeper. The last release gives the lease up. A loss ends all levels at once.
"""

from typing import Any

from dibs.errors import Reentrant
from dibs.locks.messages import format_key

_FIRST, _MORE = object(), object()


class Depth:
    """Number of times that the holder of a lease has acquired it.

    Any thread can change it, and an interrupt leaves no change half made: each is one operation on a list.
    The list begins with the first level, so that the last one cannot end while another one begins.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels = [_FIRST]

    def __len__(self) -> int:
        return len(self._levels)

    def enter(self) -> bool:
        """Go one level deeper; False if the last level has ended."""
        levels = self._levels
        levels.append(_MORE)
        if levels[:1] == [_FIRST]:
            return True
        levels.clear()
        return False

    def leave(self) -> bool:
        """End a level; return whether none is left. May be repeated after an interrupt."""
        try:
            return self._levels.pop() is _FIRST
        except IndexError:
            return True

    def restore(self, blocks: int) -> None:
        """Before a `with` block ends: make a level for each open block, although some were released."""
        levels = self._levels
        while 0 < len(levels) < blocks:
            levels.append(_MORE)


def another_of(lease: Any, on_lost: object) -> Any:
    """Return the lease that our task or thread holds, one level deeper; None if it can't be shared.

    Raises `Reentrant` for another `on_lost` than that of the outermost acquire.
    """
    depth: Depth | None = getattr(lease, "_depth", None)
    if depth is None:
        return None
    if on_lost is not None and on_lost != lease._options.on_lost:
        raise Reentrant(
            f"{format_key(lease.key)} is already held by this task or thread, and on_lost= is called once, "
            "for the outermost lease: give it there, or leave it out here",
            key=lease.key,
        )
    return lease if depth.enter() else None


def check_single(lease: Any, what: str) -> None:
    """Raise `Reentrant` while the holder of a lease has acquired it more than once."""
    if lease._depth is not None and len(lease._depth) > 1:
        raise Reentrant(
            f"{format_key(lease.key)} is held {len(lease._depth)} times over by the task or thread that "
            f"holds it, so it can't be {what}: release the other leases first",
            key=lease.key,
        )
