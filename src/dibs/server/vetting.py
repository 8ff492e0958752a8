"""What of a batch's commands is let through: bounds, and who may do what to which key."""

from collections.abc import Callable
from math import isfinite

from dibs.core.names import KINDS, MAX_NAME
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Failed,
    Inspect,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.server.api.problems import lacking
from dibs.server.auth.policy import Principal, Scope
from dibs.server.limits import MAX_ID, MAX_OWNER, MAX_TEXT, Limits
from dibs.server.placement.registry import SLACK

_KINDS = frozenset(kind.encode() for kind in KINDS)

AHEAD = SLACK // 2
"""So far ahead of this server's clock, in microseconds, a floor may be: half of what a move adds,
so that tokens rise with every move."""

_NEEDED: dict[type, Scope] = {
    Acquire: Scope.ACQUIRE,
    Renew: Scope.ACQUIRE,
    Release: Scope.ACQUIRE,
    Resize: Scope.ACQUIRE,
    Inspect: Scope.READ,
    Revoke: Scope.FORCE,
}


def refused(
    limits: Limits, who: Principal, command: Command, stamp: Callable[[], int]
) -> Reply | None:
    """What a command is answered that is not let through; None for one that is. `stamp`: see `Clock`."""
    kind, colon, name = command.key.partition(b":")
    if not colon or kind not in _KINDS or not 1 <= len(name) <= MAX_NAME:
        return Failed("invalid", f"a key must be KIND:NAME, with a name of 1 to {MAX_NAME} bytes")
    scope = _NEEDED[type(command)]
    if not who.may(scope, name):
        return _not_allowed(command, scope, name)
    flaw = _flaw(limits, command)
    if flaw is None and type(command) is Acquire:
        flaw = _floor_flaw(command, stamp)
    return None if flaw is None else Failed("invalid", flaw)


def _not_allowed(command: Command, scope: Scope, name: bytes) -> Reply:
    """What may not be seen looks as if it had never been used."""
    if type(command) is Inspect:
        return Status(command.key, 0)
    return Failed("forbidden", lacking(scope, name))


def _flaw(limits: Limits, command: Command) -> str | None:
    """What is out of bounds. The ledger has its own word on what makes no sense."""
    if type(command) is Inspect:
        return None
    if type(command) is Revoke:
        if not command.reason.strip():
            return "give a `reason`: the holder and the audit log get it"
        return text_flaw("reason", command.reason)
    if not command.id:  # type: ignore[union-attr]
        return "`id` must not be empty"
    if flaw := text_flaw("id", command.id, MAX_ID):  # type: ignore[union-attr]
        return flaw
    if (type(command) is Acquire or type(command) is Renew) and not (
        limits.min_ttl <= command.ttl <= limits.max_ttl
    ):
        return (
            f"`ttl` must be {limits.min_ttl:g} to {limits.max_ttl:g} seconds, not {command.ttl:g}"
        )
    if type(command) is Acquire:
        return _acquire_flaw(limits, command)
    if type(command) is Release:
        return _release_flaw(limits, command)
    if type(command) is Resize and not (1 <= command.units <= MANY and 0 <= command.seq < 1 << 53):
        return f"`units` must be 1 to {MANY}, `seq` 0 to 2^53"
    return None


def _acquire_flaw(limits: Limits, command: Acquire) -> str | None:
    if flaw := _size_flaw(limits, command):
        return flaw
    if not -(1 << 31) <= command.priority < 1 << 31:  # at the top are those who wait to upgrade
        return "`priority` must be -2^31 to 2^31 - 1"
    if not (isfinite(command.waiter_ttl) and 0 < command.waiter_ttl <= limits.max_ttl):
        return f"`waiter_ttl` must be at most {limits.max_ttl:g} seconds"
    if not 0 <= command.lock_delay <= limits.max_ttl:
        return f"`lock_delay` must be at most {limits.max_ttl:g} seconds"
    return (
        text_flaw("owner", command.owner, MAX_OWNER)
        or text_flaw("note", command.note)
        or text_flaw("trace", command.trace, MAX_ID)
    )


def _size_flaw(limits: Limits, command: Acquire) -> str | None:
    """What others hold by depends on the capacity, so it is the one that the kind of resource has."""
    kind, units, capacity = command.key.partition(b":")[0], command.units, command.capacity
    if kind == b"semaphore":
        most = limits.max_capacity
        if not (1 <= units <= most and 1 <= capacity <= most):
            return f"`units` and `capacity` must be 1 to {most}"
    elif kind == b"rwlock":
        if capacity != MANY or units not in (1, MANY - 1, MANY):
            return (
                f"of an rwlock, `capacity` must be {MANY}, and `units` 1 to read, {MANY} to write or "
                f"{MANY - 1} to upgrade"
            )
    elif units != 1 or capacity != 1:
        return f"of a {kind.decode()}, `units` and `capacity` must be 1"
    return None


def _floor_flaw(command: Acquire, stamp: Callable[[], int]) -> str | None:
    """No key's tokens get far ahead of the clocks, or they would fall when its directory moves."""
    if command.floor and not 0 <= command.floor <= stamp() + AHEAD:
        return (
            f"floor is {command.floor}, which is more than {AHEAD / 6e7:.0f} minutes ahead of the "
            "server's clock, in microseconds since 1970"
        )
    return None


def _release_flaw(limits: Limits, command: Release) -> str | None:
    for what, most in (("retain", limits.max_keep), ("tombstone", limits.max_ttl)):
        if not 0 <= getattr(command, what) <= most:
            return f"`{what}` must be at most {most:g} seconds"
    return None


def text_flaw(what: str, text: str, most: int = MAX_TEXT) -> str | None:
    """What is wrong with a text that is longer than so many bytes."""
    size = len(text.encode(errors="surrogatepass"))
    return f"`{what}` must be at most {most} bytes long, not {size}" if size > most else None
