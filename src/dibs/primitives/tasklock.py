"""A task lock: one try, no renewal, and kept for a while after the task, so that it isn't run twice."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Never, Self, Unpack

from dibs.config import UNSET, Duration, LockConfig, Unset, flag, safe_ttl, seconds
from dibs.core.names import Kind
from dibs.errors import UnsafeTiming
from dibs.primitives.options import NoOptions, refuse_options, shown_as
from dibs.primitives.primitive import PrimitiveBase
from dibs.primitives.tasklease import TaskLeaseBase
from dibs.settings import configured_together


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLockConfig:
    """How a task lock is held; give it to `TaskLock.from_config`."""

    min_hold: Duration = 1.0
    """Nobody else starts before so long has passed since the start, however it went."""
    max_hold: Duration = 60.0
    """Nobody is kept out for longer, even if the process that runs the task dies."""
    cancel: bool = False
    """Cancel the body in time before `max_hold` is over, instead of only saying so."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""

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


READERS: Mapping[str, Callable[[str], Any]] = {
    "min_hold": str,
    "max_hold": str,
    "cancel": flag,
    "note": str,
    "label": str,
}


def task_configured(
    name: str | bytes, given: Mapping[str, Any], *, env_prefix: str | None, env_load: bool
) -> TaskLockConfig:
    """Settings by keyword, `DIBS_TASKLOCK__<NAME>__<SETTING>`, `[tasklock.<name>]` of the file.

    What is set for all locks is not for task locks, whose durations go together.
    """
    return configured_together(
        TaskLockConfig, READERS, "tasklock", name, given, env_prefix=env_prefix, env_load=env_load
    )


class TaskTerms(NamedTuple):
    """What the leases of a task lock have to know."""

    min_hold: float
    cancel: bool


class TaskLockBase[LeaseT: TaskLeaseBase](PrimitiveBase[LeaseT]):
    """One start at a time, and none too soon after the one before."""

    kind: ClassVar[Kind] = "tasklock"
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
        on_lost: Callable[[Any], object] | None = None,
        require: Iterable[str] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        if more or others:
            refuse_options(f"a {self.kind}", others, TaskLockBase.__init__, more and self._takes)
        given = {
            "min_hold": min_hold,
            "max_hold": max_hold,
            "cancel": cancel,
            "note": note,
            "label": label,
        }
        config = task_configured(name, given, env_prefix=env_prefix, env_load=env_load)
        self._describe_task(name, config, on_lost, require, client)

    @classmethod
    def from_config(  # type: ignore[override]  # most settings of a lock mean nothing to it
        cls,
        name: str | bytes,
        config: TaskLockConfig,
        *,
        on_lost: Callable[[Any], object] | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        self = cls.__new__(cls)
        self._describe_task(name, config, on_lost, require, client)
        return self

    def _describe_task(
        self,
        name: str | bytes,
        config: TaskLockConfig,
        on_lost: Callable[[Any], object] | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        # TaskLockConfig has made them seconds
        self.min_hold, self.max_hold = config.min_hold, config.max_hold  # type: ignore[assignment]
        self._more = TaskTerms(self.min_hold, config.cancel)
        hold = LockConfig(
            # `min_hold` counts from the answer, which takes a sixth of the ttl at most
            ttl=max(self.max_hold, self.min_hold * 6 / 5),
            wait=0,
            auto_renew=False,
            max_hold=config.max_hold,
            note=config.note,
            label=config.label,
        )
        self._describe(name, hold, on_lost, require, client)
