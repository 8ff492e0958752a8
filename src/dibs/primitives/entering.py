"""Blocks that are begun and ended: whoever describes a hold keeps those that are entered by hand."""

from typing import Any, Protocol

from dibs.runtime.port import Runtime


class Block(Protocol):
    """Whoever keeps the lease of a `with` block."""

    lease: Any


class Held(Protocol):
    """What a block is entered with: a lease, or several."""

    _me: object
    """The task or thread that acquired it."""

    async def _begin(self) -> None:
        """The body begins, once that may be."""

    def _enter(self) -> None:
        """The body begins."""

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended, by an exception or without."""


class Entering[HeldT: Held]:
    """What can be the subject of a `with` or an `async with`."""

    _entered: dict[object, list[HeldT]]

    def _runtime(self) -> Runtime:
        """The way to the store from where we are; set by the faces."""
        raise NotImplementedError

    async def _acquire(self) -> HeldT:
        """Acquire, as it is described."""
        raise NotImplementedError

    @property
    def _called(self) -> str:
        """What to call it in a message."""
        raise NotImplementedError

    async def _enter(self, block: Block | None) -> HeldT:
        """Acquire and begin a block; where `block` is None its lease is kept here meanwhile."""
        lease = await self._acquire()
        lease._enter()
        if block is not None:
            block.lease = lease
            return lease
        return self._remember(lease)

    def _remember(self, lease: HeldT) -> HeldT:
        """Keep the lease of a block that is entered by hand."""
        mine = self._entered.setdefault(lease._me, [])
        try:
            mine.append(lease)
            return lease
        except BaseException:  # interrupted: no __exit__ will ever take it out
            if lease in mine:
                mine.remove(lease)
            raise

    def _take_entered(self) -> HeldT:
        """The lease of the innermost block that our task or thread has entered by hand."""
        entered: dict[object, list[HeldT]] = self._entered
        try:
            me = self._runtime().me()
        except RuntimeError:
            me = None  # its event loop has gone, and the block is left by the garbage collector
        if me not in entered:  # left by another task than entered it, as fixtures do
            if not entered:
                raise RuntimeError(f"a block of {self._called} is left that nobody entered")
            me = list(entered)[-1]
        leases = entered[me]
        lease = leases.pop()
        if not leases:
            del entered[me]
        return lease
