"""Who keeps the lease of a `with` block: the interpreter, on its stack, and nobody else.

`with lock:` looks both of its methods up before it calls the first, and keeps the second until the block
has ended, however that comes about. So each look-up gives an object of its own, and that holds the
lease. Where a Ctrl-C stops the leaving at its very first step, or a task is destroyed inside of its
block, that object goes with the frame, and the lease, which nobody has any more, is given up. If the
lock itself kept it, one that lives as long as its program would have it renewed for ever.
"""

import threading
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import ref


class Block:
    """The end of one block: what the interpreter calls there, and until then the block's lease."""

    __slots__ = ("__weakref__", "_leave", "lease", "of")

    def __init__(self, leave: Callable[..., Any], of: object) -> None:
        self._leave = leave
        self.of = of
        """The primitive, or its class if it was looked up there, as `ExitStack` does."""
        self.lease: Any = None

    def __call__(self, *about: object) -> Any:
        lease, self.lease = self.lease, None
        return self._leave(*about, lease)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._leave


class _Leaving:
    """A method that ends a block; each look-up is the beginning of one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, primitive: object, cls: type) -> Block:
        function = self._function
        if primitive is None:
            block = Block(function, cls)
        else:
            block = Block(MethodType(function, primitive), primitive)
        _looked_up.block = ref(block)
        return block


class _LookedUp(threading.local):
    """The block that this thread has looked up and not yet entered."""

    block: "ref[Block] | None" = None


_looked_up = _LookedUp()


def leaving[F: Callable[..., Any]](function: F) -> F:
    """A method that ends a block, and is given the block's lease after its other arguments."""
    return _Leaving(function)  # type: ignore[return-value]  # to its callers it is the same


def begun(primitive: object) -> Block | None:
    """The block that is being entered; None where somebody calls the methods by hand."""
    found = _looked_up.block
    if found is None:
        return None
    _looked_up.block = None
    block = found()
    if block is None or not (block.of is primitive or block.of is type(primitive)):
        return None
    return block
