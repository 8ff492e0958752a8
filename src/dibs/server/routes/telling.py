"""What several routes tell, and check."""

from dibs.core.names import KINDS
from dibs.model import Failed, Queued, Reply
from dibs.server.api.problems import ApiProblem
from dibs.server.limits import MAX_TEXT, Limits
from dibs.server.vetting import text_flaw

_OTHER_KINDS = f"For another kind, add kind= ({', '.join(KINDS)})"


def check_ttl(limits: Limits, ttl: float) -> None:
    """Raises `ApiProblem`, 400, for one beyond the limits."""
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
