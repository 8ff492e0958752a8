"""Who keeps the lease of a `with` block: the interpreter, on its stack, and nobody else.

`with lock:` looks both of its methods up before it calls the first, and keeps the second until the block
has ended, however that comes about. So each look-up gives an object of its own, and that holds the
lease. Where a Ctrl-C stops the leaving half-way, or a task is destroyed inside of its block, that
object goes with the frame, and gives up what it still holds. If the lock itself kept the lease, a lock
that lives as long as its program would have it renewed for ever.

What nobody can help: whoever keeps the exception (`sys.last_exc` at a prompt) keeps the frames, too.
"""

import sys
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import ref

NEAR = 32
"""So many bytes of code lie between the look-up of a `with` statement and its call, at most."""


class Block:
    """The end of one block: what the interpreter calls there, and until then the block's lease."""

    __slots__ = ("__weakref__", "_leave", "lease", "of")

    def __init__(self, leave: Callable[..., Any], of: object) -> None:
        self.lease: Any = None
        self._leave = leave
        self.of = of

    def __call__(self, *about: object) -> Any:
        left = self._leave(*about, self.lease)
        self.lease = None
        return left

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._leave

    def __del__(self) -> None:
        if self.lease is not None:  # the leaving was stopped before its end
            self.lease._drop()


class _Leaving:
    """A method that ends a block; each look-up is the beginning of one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, primitive: object, cls: type) -> Callable[..., Any]:
        if primitive is None:
            return self._function
        block = Block(MethodType(self._function, primitive), primitive)
        frame = sys._getframe(1)
        _looked_up.last = ref(block), id(frame), frame.f_lasti
        return block


class _LookedUp(threading.local):
    """What this thread has looked up last and not yet entered, and where in its code that was."""

    last: "tuple[ref[Block], int, int] | None" = None


_looked_up = _LookedUp()


def leaving[F: Callable[..., Any]](function: F) -> F:
    """A method that ends a block, and is given the block's lease after its other arguments.

    None where somebody called the methods by hand: the lease is the primitive's to remember then.
    """
    return _Leaving(function)  # type: ignore[return-value]  # to its callers it is the same


def begun(primitive: object) -> Block | None:
    """The block that the caller's caller is entering; None where the methods are called by hand."""
    last = _looked_up.last
    if last is None:
        return None
    _looked_up.last = None
    block, frame = last[0](), sys._getframe(2)
    if block is None or block.of is not primitive or id(frame) != last[1]:
        return None
    return block if 0 <= frame.f_lasti - last[2] <= NEAR else None
