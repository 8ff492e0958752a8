"""`with` on whatever can be acquired."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dibs.faces.loops import refuse_in_loop
from dibs.primitives.entering import Entering, Held
from dibs.runtime.step import step


class Enterable[HeldT: Held](Entering[HeldT]):
    """What can be entered with `with`."""

    def __enter__(self) -> HeldT:
        refuse_in_loop(self)
        return step(self._enter())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step(self._take_entered()._leave(exc))

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        async def __aenter__(self) -> Any:
            raise TypeError(
                f"{type(self).__name__} of dibs.sync blocks: write `with`, "
                f"or import {type(self).__name__} from dibs for `async with`"
            )

        async def __aexit__(self, *about: object) -> None: ...


class HeldByThread:
    """What was acquired, as the subject of `with`."""

    __slots__ = ()
    _are: ClassVar[str] = "this lease is"

    def __enter__[HeldT: Held](self: HeldT) -> HeldT:  # noqa: PYI019 -- only what is Held
        step(self._begin())
        return self

    def __exit__(
        self: Held,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step(self._leave(exc))

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        async def __aenter__(self) -> Any:
            raise TypeError(f"{self._are} held by a thread: write `with`, not `async with`")

        async def __aexit__(self, *about: object) -> None: ...
