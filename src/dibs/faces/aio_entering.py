"""`async with` on whatever can be acquired."""

from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dibs.primitives.entering import Entering, Held


class Enterable[HeldT: Held](Entering[HeldT]):
    """What can be entered with `async with`."""

    def __aenter__(self) -> Coroutine[Any, Any, HeldT]:
        return self._enter()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        return self._take_entered()._leave(exc)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def __enter__(self) -> Any:
            raise TypeError(
                f"{type(self).__name__} of dibs is for asyncio: write `async with`, "
                f"or import {type(self).__name__} from dibs.sync for `with`"
            )

        def __exit__(self, *about: object) -> None: ...


class HeldByTask:
    """What was acquired, as the subject of `async with`."""

    __slots__ = ()
    _are: ClassVar[str] = "this lease is"

    async def __aenter__[HeldT: Held](self: HeldT) -> HeldT:  # noqa: PYI019 -- only what is Held
        await self._begin()
        return self

    async def __aexit__(
        self: Held,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(exc)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def __enter__(self) -> Any:
            raise TypeError(f"{self._are} held by a task: write `async with`, not `with`")

        def __exit__(self, *about: object) -> None: ...
