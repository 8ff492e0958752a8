"""A readers-writer lock: many readers or one writer.

It is one key without slot numbers. A reader takes one unit, a writer all of them, so the queue serves both
in their order of arrival: a writer that waits keeps later readers behind it, and is overtaken by nobody.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, Unpack

from dibs.config import LockConfig
from dibs.core.names import Kind
from dibs.errors import AcquireTimeout, Reentrant
from dibs.locks.base import PrimitiveBase
from dibs.locks.messages import key_shown
from dibs.locks.requests import Ask, ClientLockOptions, Terms, shown_as
from dibs.locks.resizing import ResizableLease
from dibs.locks.waiting import OnWait
from dibs.model import MANY

READER, WRITER = 1, MANY
"""How many units each takes."""


class SideBase[LeaseT: ResizableLease](PrimitiveBase[LeaseT]):
    """One way of acquiring the lock: for reading, or for writing."""

    kind: ClassVar[Kind] = "rwlock"
    # Whoever reads may not wait to read again: a writer that queued in between would wait for it.
    _for_one: ClassVar[bool] = True
    _advice: ClassVar[str]
    _mode: ClassVar[Literal["read", "write"]]

    @property
    def _capacity(self) -> int:
        return MANY

    def _another_wish(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[Ask, Terms]:
        if units != 1:
            raise ValueError(f"units is {units!r}: a reader takes one, a writer all; leave it out")
        return super()._another_wish(self._units, priority, note)

    def _refuse_reentry(self, patience: object) -> None:
        told = f"{key_shown(self.key)} is already held by this task or thread"
        if patience == 0:
            raise AcquireTimeout(told, key=self.key)
        raise Reentrant(f"{told}, so waiting for it may never end: {self._advice}", key=self.key)

    def _again(self, held: Any) -> LeaseT | None:
        return super()._again(held) if getattr(held, "mode", None) == self._mode else None

    async def _locked(self) -> bool:
        return (await self._status()).used + self._units > MANY


class ReadSideBase[LeaseT: ResizableLease](SideBase[LeaseT]):
    """For reading, beside other readers."""

    _units: ClassVar[int] = READER
    _mode: ClassVar[Literal["read", "write"]] = "read"
    _advice: ClassVar[str] = "pass the lease on instead of acquiring it again"


class WriteSideBase[LeaseT: ResizableLease](SideBase[LeaseT]):
    """For writing, alone."""

    _units: ClassVar[int] = WRITER
    _mode: ClassVar[Literal["read", "write"]] = "write"
    _advice: ClassVar[str] = "upgrade() the lease that is held, or pass it on"


class RWLockBase[ReadT: PrimitiveBase[Any], WriteT: PrimitiveBase[Any]]:
    """Many readers or one writer; `read()` and `write()` are what is acquired.

    Like every primitive it is a description without state.
    """

    kind: ClassVar[Kind] = "rwlock"
    _reading: ReadT
    _writing: WriteT
    _read_type: type[ReadT]
    _write_type: type[WriteT]

    @shown_as("RWLock.__init__")
    def __init__(
        self, name: str | bytes, *more: Never, **options: Unpack[ClientLockOptions]
    ) -> None:
        self._reading = reading = self._read_type(name, *more, **options)
        self._writing = self._write_type.from_config(
            name,
            reading.config,
            on_lost=reading._on_lost,
            on_wait=reading._on_wait,
            require=reading._require,
            client=reading._client,
        )

    @classmethod
    def from_config(
        cls,
        name: str | bytes,
        config: LockConfig,
        *,
        on_lost: Callable[[Any], object] | None = None,
        on_wait: OnWait | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        self = cls.__new__(cls)
        required = frozenset({require} if isinstance(require, str) else require)
        for attribute, side in (("_reading", cls._read_type), ("_writing", cls._write_type)):
            described = side.from_config(
                name,
                config,
                on_lost=on_lost,
                on_wait=on_wait,
                require=required,
                client=client,
            )
            setattr(self, attribute, described)
        return self

    @property
    def name(self) -> str | bytes:
        """Its name, as it was given."""
        return self._reading.name

    @property
    def key(self) -> bytes:
        """Its kind and its name."""
        return self._reading.key

    @property
    def config(self) -> LockConfig:
        """How it is acquired and held."""
        return self._reading.config

    @property
    def _client(self) -> Any:
        return self._reading._client

    @shown_as("RWLock.read")
    def read(self) -> ReadT:
        """For reading: as many as come, while nobody writes. Acquired and entered as a `Lock` is."""
        return self._reading

    @shown_as("RWLock.write")
    def write(self) -> WriteT:
        """For writing: alone. Acquired and entered as a `Lock` is."""
        return self._writing

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {key_shown(self.key)}>"

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def __enter__(self) -> Any:
            raise TypeError(f"say what for: `with {_example(self)}.read()` or `….write()`")

        def __exit__(self, *about: object) -> None: ...

        async def __aenter__(self) -> Any:
            raise TypeError(f"say what for: `async with {_example(self)}.read()` or `….write()`")

        async def __aexit__(self, *about: object) -> None: ...


def _example(lock: RWLockBase[Any, Any]) -> str:
    return f"{type(lock).__name__}({lock.name!r})"
