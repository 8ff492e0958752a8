"""The constructors' options, as type checkers see them where they are passed on."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from dibs.config import Duration, Unset
from dibs.primitives.watching import Waiting


class HoldOptions(TypedDict, total=False):
    """How a primitive is acquired and held."""

    ttl: Duration | Unset
    wait: Duration | Unset | None
    priority: int | Unset
    note: str | Unset
    label: str | Unset
    auto_renew: bool | Unset
    max_hold: Duration | Unset | None
    reentrant: bool | Unset
    lock_delay: Duration | Unset
    detect_deadlocks: bool | Unset
    on_lost: Callable[[Any], object] | None
    on_wait: Callable[[Waiting], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool


class Options(HoldOptions, total=False):
    """The same, and by which client."""

    client: Any


class TaskOptions(TypedDict, total=False):
    """How a task lock is held."""

    cancel: bool | Unset
    note: str | Unset
    label: str | Unset
    on_lost: Callable[[Any], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool


class ElectionOptions(TypedDict, total=False):
    """How a leader is elected."""

    ttl: Duration | Unset
    renew_deadline: Duration | Unset
    retry: Duration | Unset
    priority: int | Unset
    note: str | Unset
    label: str | Unset
    lock_delay: Duration | Unset
    on_started: Callable[[Any], object] | None
    on_stopped: Callable[[Any], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool
