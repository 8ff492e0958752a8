"""The exceptions that Dibs raises, and its warnings."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # an error needs none of it, and it takes a while to import
    from dibs.model import Holder


class DibsError(Exception):
    """Base class of all errors that Dibs raises.

    `key` is the key, `holders` are its last known holders, `position` is the number of waiters ahead in the
    queue, and `retry_after` the seconds after which another try can succeed; None if unknown.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: bytes | None = None,
        holders: "tuple[Holder, ...]" = (),
        position: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.key: bytes | None = key
        self.holders: tuple[Holder, ...] = holders
        self.position: int | None = position
        self.retry_after: float | None = retry_after


class AcquireTimeout(DibsError, TimeoutError):
    """The units did not become free within `wait` seconds. The message names the holders."""


class LeaseLost(DibsError):
    """The lease ended before its release, so another holder may use the resource now.

    `reason` is `expired` (no renewal got through in time), `revoked`, `max_hold`, `closed` (the
    client was closed, or the process forked) or `resigned` (of a leader).
    """

    def __init__(self, message: str = "", *, reason: str = "expired", **about: Any) -> None:
        super().__init__(message, **about)
        self.reason: str = reason


class NotHeld(DibsError):
    """The lease was released or detached, so the operation is not possible."""


class Reentrant(DibsError):
    """This task or thread already holds the key, so waiting for it would never end.

    Also raised if it holds the key more than once (`reentrant=True`) and tries to detach or change it.
    """


class Deadlock(DibsError):
    """Waiters wait for each other in a circle. Release what you hold, and start again."""


class BackendUnavailable(DibsError, ConnectionError):
    """The store did not answer. It may or may not have applied the last command."""

    busy: bool = False
    """True if the store is well, and an open transaction blocks this key."""

    moving: bool = False
    """True if the lock service is moving this key's directory, and grants nothing new there until then."""


class Forbidden(DibsError, PermissionError):
    """The store denies access to this user."""


class InvalidName(DibsError, ValueError):
    """The name is not 1 to 512 bytes long."""


class InvalidRequest(DibsError, ValueError):
    """The store never accepts this request, such as a ttl beyond its limits. Correct the call."""


class UnsafeTiming(DibsError, ValueError):
    """These durations cannot keep exclusion, such as a ttl that is too short."""


class MissingCapability(DibsError):
    """The store lacks a capability that `require=` names."""


class NotConfigured(DibsError):
    """No usable store is configured, or the settings cannot be read."""


class IncompatibleVersion(DibsError):
    """The data in the store has a format that this version cannot read."""


class Corrupt(DibsError):
    """The data in the store is damaged; nothing is granted from it."""


class CapacityWarning(UserWarning):
    """Other users of this semaphore declare another capacity."""


class ImplicitStoreWarning(UserWarning):
    """No store is configured, so the lock only excludes processes of this user on this host."""
