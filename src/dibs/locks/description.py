"""What is wanted, and how it will be held: all that a primitive is, without state of its own."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from socket import gethostname
from typing import Any, ClassVar, Never, Self, Unpack

from dibs.config import UNSET, Duration, LockConfig, Unset, check_priority
from dibs.core.names import Kind, key_of
from dibs.errors import MissingCapability
from dibs.locks.messages import key_shown
from dibs.locks.options import NoOptions, refuse_options, shown_as
from dibs.locks.requests import Ask, Terms
from dibs.locks.waiting import OnWait, check_on_wait
from dibs.settings import configured, settings_for_all

_hosts: dict[int, str] = {}


def here() -> str:
    """This process, for people: `host/pid`."""
    pid = os.getpid()
    found = _hosts.get(pid)
    if found is None:
        _hosts.clear()
        found = _hosts[pid] = f"{gethostname()}/{pid}"
    return found


class Description:
    """A named resource and how it is to be acquired."""

    kind: ClassVar[Kind]
    _units: ClassVar[int] = 1
    """So many are taken unless another number is asked for."""
    _more: Any = None
    """What its leases have to know besides the usual terms."""
    _for_one: ClassVar[bool] = False
    """No task or thread may wait for it twice, whatever its capacity."""
    _may_await: ClassVar[bool] = True
    """Its callbacks may be coroutine functions."""
    _on_wait: OnWait | None = None
    _takes: ClassVar[str] = "one name"

    @shown_as("Lock.__init__")
    def __init__(
        self,
        name: str | bytes,
        *more: Never,
        ttl: Duration | Unset = UNSET,
        wait: Duration | Unset | None = UNSET,
        priority: int | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        auto_renew: bool | Unset = UNSET,
        max_hold: Duration | Unset | None = UNSET,
        reentrant: bool | Unset = UNSET,
        lock_delay: Duration | Unset = UNSET,
        detect_deadlocks: bool | Unset = UNSET,
        on_lost: Callable[[Any], object] | None = None,
        on_wait: OnWait | None = None,
        require: Iterable[str] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        if more or others:
            refuse_options(f"a {self.kind}", others, Description.__init__, more and self._takes)
        given = {
            "ttl": ttl,
            "wait": wait,
            "priority": priority,
            "note": note,
            "label": label,
            "auto_renew": auto_renew,
            "max_hold": max_hold,
            "reentrant": reentrant,
            "lock_delay": lock_delay,
            "detect_deadlocks": detect_deadlocks,
        }
        if env_load and env_prefix is None and client is not None:
            config = self._configured(name, given, client)
        else:
            config = configured(self.kind, name, given, env_prefix=env_prefix, env_load=env_load)
        self._describe(name, config, on_lost, require, client)
        self._watch_by(on_wait)

    def _configured(self, name: str | bytes, given: Mapping[str, Any], client: Any) -> LockConfig:
        """By what the client remembers of the settings, where no name has any of its own."""
        kept = getattr(client, "_settings", None)
        if kept is None:
            return configured(self.kind, name, given)
        found = kept.get(self.kind)
        if found is None:
            values = settings_for_all(self.kind)
            found = values, None if values is None else LockConfig(**values)
            kept[self.kind] = found
        values, config = found
        if config is None:
            return configured(self.kind, name, given)
        more = {field: value for field, value in given.items() if value is not UNSET}
        return LockConfig(**(values | more)) if more else config

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
        if not isinstance(config, LockConfig):
            raise TypeError(f"config is {config!r}: give a LockConfig")
        self = cls.__new__(cls)
        self._describe(name, config, on_lost, require, client)
        self._watch_by(on_wait)
        return self

    def _describe(
        self,
        name: str | bytes,
        config: LockConfig,
        on_lost: Callable[[Any], object] | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost is {on_lost!r}: give a function that takes the lease")
        self.key = key_of(self.kind, name)
        self.name = name
        self.config = config
        self._on_lost = on_lost
        self._require = frozenset({require} if isinstance(require, str) else require)
        self._client = client
        # LockConfig has made them seconds
        self._ttl: float = config.ttl  # type: ignore[assignment]
        self._wait: float | None = config.wait  # type: ignore[assignment]
        self._max_hold: float | None = config.max_hold  # type: ignore[assignment]
        self._lock_delay: float = config.lock_delay  # type: ignore[assignment]
        self._reentrant = config.reentrant
        self._here = ""
        self._wish: tuple[Ask, Terms]

    def _watch_by(self, on_wait: OnWait | None) -> None:
        """Have that called while an acquire waits."""
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
            self._on_wait = on_wait

    @property
    def _capacity(self) -> int:
        return 1

    @property
    def _called(self) -> str:
        return key_shown(self.key)

    # -- from this process on -----------------------------------------------------------------------

    def _describe_here(self) -> tuple[Ask, Terms]:
        """What is asked for by default, and how it is held, from this process on."""
        config, process = self.config, here()
        owner = f"{process}/{config.label}" if config.label else process
        capacity, ttl, units = self._capacity, self._ttl, self._units
        priority, note = config.priority, config.note
        delay, detects = self._lock_delay, config.detect_deadlocks
        ask = Ask(self.key, owner, ttl, units, capacity, priority, note, 0, delay, detects)
        hold, exclusive = self._max_hold, capacity == 1 or self._for_one
        renews, on_lost = config.auto_renew, self._on_lost
        terms = Terms(ttl, owner, units, exclusive, renews, hold, on_lost, self._more, detects)
        self._wish = ask, terms
        self._here = process  # last, as it tells other threads, too, that the wish is there
        return ask, terms

    def _asked(self, units: int, priority: int | None, note: str | None) -> tuple[Ask, Terms]:
        """What is asked for this time. Raises `ValueError`, `TypeError` for what can't be."""
        wish = self._wish if self._here is here() else self._describe_here()
        if units == 1 and priority is None and note is None:
            return wish
        wish = self._another_wish(units, priority, note)
        if not 1 <= units <= self._capacity:
            told = f"{key_shown(self.key)} has a capacity of {self._capacity}"
            raise ValueError(f"units is {units}: it must be at least 1, and {told}")
        return wish

    def _another_wish(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[Ask, Terms]:
        for what, value in (("units", units), ("priority", priority)):
            if value is not None and type(value) is not int:
                raise TypeError(f"{what} is {value!r}: give an int")
        if priority is not None:
            check_priority(priority)
        if not isinstance(note, str | None):
            raise TypeError(f"note is {note!r}: give a text")
        ask, terms = self._wish
        ask = ask._replace(
            units=units,
            priority=ask.priority if priority is None else priority,
            note=ask.note if note is None else note,
        )
        return ask, terms._replace(units=units)

    # -- as one of several --------------------------------------------------------------------------

    def _wish_for(
        self, units: int, ttl: float | None, priority: int | None, note: str | None
    ) -> tuple[Ask, Terms]:
        """What is asked for together with others; without a `ttl` its own."""
        self._describe_here()
        ask, terms = self._another_wish(units, priority, note)
        if ttl is None:
            ttl = ask.ttl
        return ask._replace(ttl=ttl), terms._replace(ttl=ttl)

    def _differences(self) -> dict[str, Any]:
        """All that makes a difference to a lease on the same key."""
        config = self.config
        found = {field.name: getattr(config, field.name) for field in fields(config)}
        del found["wait"]  # of the acquire, not of the lease
        return found | {"capacity": self._capacity, "on_lost": self._on_lost}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {key_shown(self.key)}>"


def check_promises(required: Collection[str], promised: Collection[str], where: str) -> None:
    """Raises `MissingCapability` for what is required and not promised."""
    missing = sorted(set(required) - set(promised))
    if missing:
        raise MissingCapability(
            f"{where} can't promise {', '.join(missing)}: it promises {', '.join(sorted(promised))}"
        )
