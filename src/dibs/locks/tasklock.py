"""`TaskLock`: one try, no renewal, and units retained after the task, so that it is not run twice."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Never, NoReturn, Self, Unpack

from dibs.config import UNSET, Duration, LockConfig, Readers, Unset, readers_of, safe_ttl, seconds
from dibs.core.names import Kind
from dibs.errors import UnsafeTiming
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase
from dibs.locks.messages import format_duration, format_key
from dibs.locks.requests import (
    Grant,
    HoldOptions,
    LeaseRules,
    NoOptions,
    refuse_options,
    shown_as,
)
from dibs.model import Promise
from dibs.runtime.port import Runtime
from dibs.settings import PrimitiveConfig, config_of

log: logging.Logger = logging.getLogger("dibs")


class TaskLeaseBase(LeaseBase):
    """A task lease on both sides; made by task locks only."""

    __slots__ = ("_asked_at", "_reported")

    def __init__(
        self, rt: Runtime, key: bytes, options: HoldOptions, grant: Grant, me: object
    ) -> None:
        self._asked_at = grant.since
        self._reported = False
        super().__init__(rt, key, options, grant, me)

    async def _leave(self, exc: BaseException | None) -> None:
        try:
            await super()._leave(exc)
        finally:
            self._report_overrun()

    def _begin_release(self) -> bool:
        self._report_overrun()
        return super()._begin_release()

    def _report_overrun(self) -> None:
        """Log once that the store let go before the task was done."""
        ran = self._rt.now() - self._asked_at
        most: float = self._options.max_hold or self.ttl
        if ran > most and not self._reported:
            self._reported = True
            log.warning(
                "%s was held for %s, %s longer than its max_hold of %s, so it may have been started "
                "elsewhere meanwhile: give it a longer max_hold, or cancel=True",
                format_key(self.key),
                format_duration(ran),
                format_duration(ran - most),
                format_duration(most),
            )

    async def _renew(self, ttl: Duration | None) -> None:
        self._refuse("renewed", "it ends after max_hold")

    def detach(self) -> str:
        """Never works: another process would not know how long to retain its units. Raises `TypeError`."""
        self._refuse("detached", "it is for one task, from its start to its end")

    def _refuse(self, what: str, why: str) -> NoReturn:
        raise TypeError(f"the lease of a task lock is never {what}: {why}; use a Lock for that")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLockConfig:
    """How a task lock is held; give it to `TaskLock.from_config`."""

    min_hold: Duration = 1.0
    """Time from a start until the next one is possible, however the task went."""
    max_hold: Duration = 60.0
    """Time after which another start is possible, even if the process of the task died."""
    cancel: bool = False
    """Cancel the body before `max_hold` is over, instead of logging a warning at its end."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""
    _readers: ClassVar[Readers]
    _for_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            longest = safe_ttl(self.max_hold)
        except UnsafeTiming as error:
            raise UnsafeTiming(f"max_hold: {error}") from error
        shortest = seconds(self.min_hold, "min_hold")
        if shortest > longest:
            raise UnsafeTiming(
                f"min_hold is {shortest:g} s and max_hold {longest:g} s: it can't be kept closed for "
                "longer than it may be kept at all"
            )
        if type(self.cancel) is not bool:
            raise TypeError(f"cancel is {self.cancel!r}: give True or False")
        object.__setattr__(self, "min_hold", shortest)
        object.__setattr__(self, "max_hold", longest)


TaskLockConfig._readers = readers_of(TaskLockConfig)


@lru_cache(maxsize=256)
def _lock_config(config: TaskLockConfig) -> LockConfig:
    """How the key of a task lock is acquired and held."""
    longest: Any = config.max_hold
    shortest: Any = config.min_hold
    return LockConfig(
        # `min_hold` counts from the answer, which takes a sixth of the ttl at most
        ttl=max(longest, shortest * 6 / 5),
        wait=0,
        auto_renew=False,
        max_hold=longest,
        note=config.note,
        label=config.label,
    )


class TaskLockBase[LeaseT: TaskLeaseBase](PrimitiveBase[LeaseT]):
    """A task lock on both sides."""

    kind: ClassVar[Kind] = "tasklock"
    _config_type: ClassVar[type[PrimitiveConfig]] = TaskLockConfig
    _takes: ClassVar[str] = "a name, min_hold and max_hold"
    min_hold: float
    max_hold: float

    @shown_as("TaskLock.__init__")
    def __init__(
        self,
        name: str | bytes,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        *more: Never,
        cancel: bool | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        on_lost: Callable[[LeaseT], object] | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        """Describe a task lock. The store is first asked when you acquire it. Defaults are in brackets.

        - `min_hold` (1 s): time from a start until the next one is possible.
        - `max_hold` (60 s): time after which another start is possible, even if the process died.
        - `cancel` (False): cancel the body before `max_hold` is over, instead of a warning at its end.
        - `on_lost`: called with the lease when it is lost. The others are those of a `Lock`.
        """
        if more or others:
            refuse_options(f"a {self.kind}", others, TaskLockBase.__init__, more and self._takes)
        given = (min_hold, max_hold, cancel, note, label)
        config = config_of(TaskLockConfig, self.kind, name, given, client, env_prefix, env_load)
        self._describe_task(name, config, on_lost, require, client)

    @classmethod
    def from_config(  # type: ignore[override]  # most settings of a lock mean nothing to it
        cls,
        name: str | bytes,
        config: TaskLockConfig,
        *,
        on_lost: Callable[[LeaseT], object] | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
    ) -> Self:
        """Make one from a config, without reading the environment."""
        self = cls.__new__(cls)
        self._describe_task(name, config, on_lost, require, client)
        return self

    def _describe_task(
        self,
        name: str | bytes,
        config: TaskLockConfig,
        on_lost: Callable[[LeaseT], object] | None,
        require: Promise | Iterable[Promise],
        client: Any,
    ) -> None:
        # TaskLockConfig has made them seconds
        self.min_hold, self.max_hold = config.min_hold, config.max_hold  # type: ignore[assignment]
        self._rules = LeaseRules(
            retain=self.min_hold, deadline_is="max_hold", overruns=not config.cancel
        )
        self._describe(name, _lock_config(config), on_lost, require, client)
