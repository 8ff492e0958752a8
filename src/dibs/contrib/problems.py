"""Errors as HTTP responses: the problem details of RFC 9457, for every web framework."""

from math import ceil
from typing import Any, NamedTuple

from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError, InvalidName, LeaseLost
from dibs.model import Holder

MEDIA_TYPE = "application/problem+json"


class Kind(NamedTuple):
    """A kind of error, in a response."""

    name: str
    """The end of the problem's type."""
    title: str
    status: int


KINDS: dict[type[DibsError], Kind] = {
    AcquireTimeout: Kind("busy", "The resource is in use", 409),
    BackendUnavailable: Kind("unavailable", "The lock store is unavailable", 503),
    LeaseLost: Kind("lost", "The lease was lost while the request was served", 500),
    InvalidName: Kind("name", "The request makes no valid lock name", 400),
}

_PASSING = frozenset({"busy", "unavailable"})
"""Problems that get a `Retry-After`."""

_LONGEST = 5.0
"""Seconds of `Retry-After` at most: a hold usually ends long before its lease would."""


def kinds(busy: int) -> dict[type[DibsError], Kind]:
    """The errors that become problems; contention gets the status `busy`.

    Raises `ValueError` for a status that is no error.
    """
    check_status(busy)
    return {**KINDS, AcquireTimeout: KINDS[AcquireTimeout]._replace(status=busy)}


def problem(
    kind: Kind, error: DibsError, path: str, *, disclose: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """The body and the headers of the response to an error at that path.

    The body names the key and its holders only with `disclose`.
    """
    body = {
        "type": f"urn:dibs:problem:{kind.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": str(error) if disclose else f"{kind.title}.",
        "instance": path,
        **_about(error, disclose),
    }
    return body, {"Retry-After": str(_patience(error))} if kind.name in _PASSING else {}


def check_status(status: object) -> None:
    """Raises `ValueError` for what is no status of a failure."""
    if type(status) is not int or not 400 <= status <= 599:
        raise ValueError(f"status is {status!r}: give one from 400 to 599")


def _patience(error: DibsError) -> int:
    """`Retry-After`, in whole seconds."""
    return max(1, ceil(min(error.retry_after or 0, _LONGEST)))


def _about(error: DibsError, disclose: bool) -> dict[str, Any]:
    """Further fields of the problem."""
    known: dict[str, Any] = {}
    if disclose and error.key is not None:
        known["key"] = error.key.decode("utf-8", "backslashreplace")
    if disclose and error.holders:
        known["holders"] = [_holder(each) for each in error.holders]
    if error.position is not None:
        known["position"] = error.position
    if error.retry_after is not None:
        known["retry_after"] = min(error.retry_after, _LONGEST)
    if isinstance(error, LeaseLost):
        known["reason"] = error.reason
    return known


def _holder(holder: Holder) -> dict[str, Any]:
    """A holder, without its lease's fingerprint and token."""
    return {
        "owner": holder.owner,
        "note": holder.note,
        "state": holder.state,
        "units": holder.units,
        "slots": list(holder.slots),
        "held_for": holder.held_for,
        "expires_in": holder.expires_in,
    }
