"""`with` blocks: a primitive remembers the lease of each block until the block ends."""

from typing import Any, Protocol

from dibs.runtime.port import Runtime


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
        """The way to the store from where we are; set by the public classes."""
        raise NotImplementedError

    async def _acquire(self) -> HeldT:
        """Acquire, as it is described."""
        raise NotImplementedError

    @property
    def _called(self) -> str:
        """What to call it in a message."""
        raise NotImplementedError

    async def _enter(self) -> HeldT:
        """Acquire and begin a block."""
        lease = await self._acquire()
        lease._enter()
        return self._remember(lease)

    def _remember(self, lease: HeldT) -> HeldT:
        """Keep the lease until its block ends."""
        mine = self._entered.setdefault(lease._me, [])
        try:
            mine.append(lease)
            return lease
        except BaseException:  # interrupted: no __exit__ will ever take it
            if lease in mine:
                mine.remove(lease)
            raise

    def _take_entered(self) -> HeldT:
        """Return the lease of the innermost block that this task or thread has entered.

        Raises `RuntimeError` if it entered none and several others have: nobody knows whose block this is.
        """
        entered: dict[object, list[HeldT]] = self._entered
        try:
            me = self._runtime().me()
        except RuntimeError:
            me = None  # its event loop is closed, and the garbage collector ends the block
        if me not in entered:  # left by another task than entered it, as fixtures do
            if not entered:
                raise RuntimeError(f"a block of {self._called} is left that nobody entered")
            owners = list(entered)
            if len(owners) > 1:
                owners = [each for each in entered if _is_over(each)]
            if not owners:
                raise RuntimeError(
                    f"a block of {self._called} is left by another task or thread than entered it, and "
                    "this object has several such blocks: write `with lock.acquire() as lease:` instead"
                )
            me = owners[-1]
        leases = entered[me]
        lease = leases.pop()
        if not leases:
            del entered[me]
        return lease


def _is_over(owner: Any) -> bool:
    """The task has returned, or the thread has ended."""
    done = getattr(owner, "done", None)
    return owner is None or (done() if done else not owner.is_alive())
