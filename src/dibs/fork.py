"""What a fork does to leases: the child holds nothing, and writes nothing to what it inherited."""

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something that must not live on in a child as it is."""

    def after_fork(self) -> None:
        """In the child: make fresh locks, drop inherited sockets without writing."""


class _Generation:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


generation = _Generation()
"""Counts forks between the first process and this one; a lease of another number isn't ours."""

_forkables: WeakSet[Forkable] = WeakSet()


def on_fork(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every child, as long as the thing lives."""
    _forkables.add(thing)


class FreshLock:
    """A lock that every child has anew, as another thread of the parent may have held it.

    To be taken by `with lock.held`. Were it `with lock`, a Ctrl-C could come between the taking and the
    block, in our own bytecodes, and nobody would ever release it.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self) -> None:
        self.held = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        self.held = threading.Lock()


def _after_in_child() -> None:
    generation.number += 1
    for thing in list(_forkables):
        thing.after_fork()


os.register_at_fork(after_in_child=_after_in_child)
