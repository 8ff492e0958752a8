"""What tests put in the stead of a store, for a while.

An override holds in the context that began it and in the tasks begun there, so that two tests that run at
once have each their own. Whoever has none (a thread that such a test starts) has the latest.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from dibs.hub import Hub


class _Override:
    """`here`: it has not ended, which a context that was copied meanwhile can't tell by itself."""

    __slots__ = ("here", "hub", "name")

    def __init__(self, name: str | None, hub: Hub) -> None:
        self.name = name
        self.hub = hub
        self.here = True


_latest: list[_Override] = []
_own: ContextVar[tuple[_Override, ...]] = ContextVar("dibs_overrides", default=())


def overridden(name: str | None) -> Hub | None:
    """What is used in the stead of the store of that name (None: of the default store)."""
    if not _latest:
        return None
    for each in (*_latest, *_own.get())[::-1]:
        if each.name == name and each.here:
            return each.hub
    return None


@contextmanager
def overriding(name: str | None, hub: Hub) -> Generator[None]:
    """Whatever names that store (None: no store) uses this one meanwhile."""
    override = _Override(name, hub)
    _own.set((*(each for each in _own.get() if each.here), override))
    _latest.append(override)
    try:
        yield
    finally:  # maybe in another context, as with fixtures, so nothing is reset here
        override.here = False
        _latest.remove(override)
