"""What several routes tell, and check."""

import time
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING

from dibs.core.names import KINDS
from dibs.model import MANY, Failed, Queued, Reply, Status
from dibs.server.api.problems import ApiProblem
from dibs.server.api.schemas import Info, LockShown
from dibs.server.call import Call
from dibs.server.limits import MAX_TEXT
from dibs.server.vetting import text_flaw
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import holders_to_wire

_OTHER_KINDS = f"For another kind, add kind= ({', '.join(KINDS)})"

if TYPE_CHECKING:
    from dibs.server.service import Service


def lock_shown(call: Call, status: Status) -> LockShown:
    """A lock as people see it: by the first of its holders, and all of them."""
    first = status.holders[0]
    left = max(first.expires_in, 0.0)
    return LockShown(
        encoded(status.name),
        first.lease,
        Info(ceil(left), first.owner, first.address),
        first.token,
        round(left, 3),
        moment(left),
        status.kind,
        None if status.capacity >= MANY else status.capacity,
        status.waiting,
        status.holding,
        holders_to_wire(status.holders),
    )


def check_ttl(service: "Service", ttl: float) -> None:
    """Raises `ApiProblem`, 400, for one beyond the limits."""
    limits = service.limits
    if not limits.min_ttl <= ttl <= limits.max_ttl:
        raise ApiProblem(
            "malformed",
            f"`ttl` must be {limits.min_ttl:g} to {limits.max_ttl:g} seconds, not {ttl:g}",
        )


def no_such_lease(kind: str) -> ApiProblem:
    """A problem for an id that holds nothing of this kind."""
    return ApiProblem(
        "lost",
        f"no {kind} of this name is held with this id: it expired, was released, or never existed. "
        f"{_OTHER_KINDS}",
    )


def not_held(kind: str) -> ApiProblem:
    """A problem for a name that nobody holds as this kind."""
    return ApiProblem("not-held", f"no {kind} of this name is held. {_OTHER_KINDS}")


def check_text(what: str, text: str, most: int = MAX_TEXT) -> None:
    """Raises `ApiProblem`, 400, for a text of more bytes."""
    if flaw := text_flaw(what, text, most):
        raise ApiProblem("malformed", flaw)


def failure(reply: Reply) -> ApiProblem:
    """A problem for what a store could not do."""
    if isinstance(reply, Failed):
        if reply.reason == "invalid":
            return ApiProblem("malformed", reply.detail)
        return ApiProblem("unavailable", reply.detail, retry_after=1)
    return ApiProblem("unavailable", f"the store answered with {type(reply).__name__}")


def in_line(reply: Queued) -> ApiProblem:
    """A problem for an id that has a place in line only."""
    return ApiProblem(
        "waiting",
        f"this lease id is waiting in the queue, {reply.position} ahead of it",
        retry_after=reply.recheck_in,
        position=reply.position,
    )


def moment(seconds: float) -> str:
    """The time of day so many seconds from now, as RFC 3339 writes it."""
    at = datetime.fromtimestamp(time.time() + seconds, UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"
