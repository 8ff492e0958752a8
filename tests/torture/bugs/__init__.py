"""Bugs that a simulation must catch, each planted where somebody could really make it."""

from tests.torture.bugs import leading, leases, readwrite, semaphores, starts, together
from tests.torture.bugs.bug import Bug

BUGS: dict[str, Bug] = {
    **leases.BUGS,
    **semaphores.BUGS,
    **readwrite.BUGS,
    **starts.BUGS,
    **leading.BUGS,
    **together.BUGS,
}

__all__ = ["BUGS", "Bug"]
