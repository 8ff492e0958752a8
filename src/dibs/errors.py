"""What can go wrong, who holds what you wanted, and what to do next."""

from typing import Any

from dibs.model import Holder


class DibsError(Exception):
    """The root of all errors that Dibs raises.

    `key` is the key it is about, `holders` those who held it, `position` how many were ahead in the
    queue, `retry_after` the seconds after which trying again can help; None where it isn't known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: bytes | None = None,
        holders: tuple[Holder, ...] = (),
        position: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holders = holders
        self.position = position
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[DibsError], args: tuple[Any, ...], state: dict[str, Any]) -> DibsError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class AcquireTimeout(DibsError, TimeoutError):
    """The units were not to be had within `wait`: wait longer, or ask the holder it names."""


class LeaseLost(DibsError):
    """The lease ended before its holder gave it up: what it protects may be another's by now.

    `reason` is `expired` (no renewal got through in time), `revoked`, `max_hold`, `closed` (the
    client was closed, or the process forked) or `resigned` (of a leader).
    """

    def __init__(self, message: str = "", *, reason: str = "expired", **about: Any) -> None:
        super().__init__(message, **about)
        self.reason = reason


class NotHeld(DibsError):
    """The operation needs a lease that is held, and this one was released or detached."""


class Reentrant(DibsError):
    """The caller already holds this key, so waiting for it would never end.

    Or it holds it more than once (`reentrant=True`), so that it can't be handed on or changed.
    """


class Deadlock(DibsError):
    """Those who wait for each other would wait for ever: give up what you hold, and begin again."""


class BackendUnavailable(DibsError, ConnectionError):
    """The store could not be reached or could not answer; whether it applied the last command is unknown."""

    busy: bool = False
    """The store is well: a transaction that has not ended keeps this key."""


class Forbidden(DibsError, PermissionError):
    """The store is there, and refuses this user."""


class InvalidName(DibsError, ValueError):
    """A name is 1..512 bytes long."""


class InvalidRequest(DibsError, ValueError):
    """The store is well, and never does what was asked, such as a ttl beyond its limits: mend the call."""


class UnsafeTiming(DibsError, ValueError):
    """Durations with which exclusion could not be kept."""


class MissingCapability(DibsError):
    """The store can't promise what `require=` asks for."""


class NotConfigured(DibsError):
    """No store is named, or none of that name; or the settings file can't be read."""


class IncompatibleVersion(DibsError):
    """The store holds a format that this release does not read."""


class Corrupt(DibsError):
    """What lies in the store can't be read; nothing is granted from it."""


class CapacityWarning(UserWarning):
    """A semaphore is in use with another capacity than it is declared with here."""


class ImplicitStoreWarning(UserWarning):
    """No store was named, so the lock excludes only this user on this host."""
