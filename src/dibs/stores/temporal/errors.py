"""Temporal's errors as errors of Dibs: what happened, where, and what to do about it."""

import re
from typing import TYPE_CHECKING

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.stores.temporal.ids import serve_hint, terminate_hint, unserved_message
from dibs.stores.temporal.url import TemporalTarget

if TYPE_CHECKING:
    from temporalio.service import RPCError

REACHABLE = "check that the server runs, and the host, port and firewall"


def unreachable(error: Exception, target: TemporalTarget) -> DibsError:
    """The error for a failed connection: `NotConfigured` if trying again cannot help."""
    whole = str(error).lower()
    kind: type[DibsError] = BackendUnavailable
    hint = REACHABLE
    if "dns error" in whole:
        hint = "there is no such host"
    elif "invalidcontenttype" in whole:
        kind = NotConfigured
        hint = "it does not speak TLS: add ?tls=false, or leave out the API key"
    elif "certificate" in whole:
        kind = NotConfigured
        hint = "set TEMPORAL_TLS_SERVER_CA_CERT_PATH, and name the host as the certificate has it"
    elif "broken pipe" in whole or "reset" in whole or "h2 protocol" in whole:
        hint = "does it want TLS? add ?tls=true"
    return kind(f"{target} can't be reached: {hint} ({_plain(str(error))})")


def explain(error: "RPCError", target: TemporalTarget) -> DibsError:
    """Convert an error of Temporal's client to one of Dibs."""
    from temporalio.service import RPCStatusCode as Code

    said = f"({_plain(error.message)})"
    if is_no_namespace(error):
        return NotConfigured(
            f"{target.address} has no namespace {target.namespace!r} {said}: check the URL, or make it "
            f"with `temporal operator namespace create --namespace {target.namespace}`"
        )
    refused_start = "ExecuteMultiOperation" in error.message
    if error.status is Code.UNIMPLEMENTED or refused_start:
        return IncompatibleVersion(
            f"{target} is too old {said}: it must take an update together with a start, as Temporal 1.28 and "
            "newer do by default"
        )
    if error.status in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return Forbidden(
            f"{target} refuses us {said}: check the API key (TEMPORAL_API_KEY, or a profile's) or the "
            "client's certificate, and that they are for this namespace"
        )
    if error.status is Code.RESOURCE_EXHAUSTED:
        return BackendUnavailable(
            f"{target} takes no more calls for now {said}: too much is asked of it or of one key, or the "
            "workers of the queue don't answer"
        )
    return BackendUnavailable(f"{target} could not apply it {said}")


def explain_text(error: Exception, target: TemporalTarget) -> DibsError | None:
    """The same for an error whose text contains the status. None if it contains none."""
    from temporalio.service import RPCError, RPCStatusCode

    said = str(error)
    for word, code in _STATUSES.items():
        if word in said:
            short = said.partition("Status {")[0].rstrip(" :")
            return explain(RPCError(short, RPCStatusCode[code], b""), target)
    return None


_STATUSES = {
    "code: NotFound": "NOT_FOUND",
    "PermissionDenied": "PERMISSION_DENIED",
    "Unauthenticated": "UNAUTHENTICATED",
}


def is_no_namespace(error: "RPCError") -> bool:
    """Whether the namespace does not exist, rather than a workflow in it."""
    from temporalio.service import RPCStatusCode

    return error.status is RPCStatusCode.NOT_FOUND and "namespace" in error.message.lower()


def is_passing(error: "RPCError") -> bool:
    """Whether another try at once can help: after too many calls, or when a run has just ended."""
    from temporalio.service import RPCStatusCode as Code

    if error.status is Code.NOT_FOUND:
        return not is_no_namespace(error)
    closing = error.status is Code.UNAVAILABLE and "closing" in error.message
    ending = error.status is Code.FAILED_PRECONDITION and "workflow task" in error.message
    return closing or ending or error.status in (Code.RESOURCE_EXHAUSTED, Code.ABORTED)


def is_full(error: "RPCError") -> bool:
    """Whether the server takes no more calls for now."""
    from temporalio.service import RPCStatusCode

    return error.status is RPCStatusCode.RESOURCE_EXHAUSTED


def failed(cause: BaseException, target: TemporalTarget) -> DibsError:
    """The error for a call that a broker refused, or did not answer before its end."""
    if getattr(cause, "type", "") == "IncompatibleVersion":
        return IncompatibleVersion(f"{target}: {cause}")
    return BackendUnavailable(f"{target}: the broker could not answer ({_plain(str(cause))})")


def unserved_by(target: TemporalTarget, queue: str, ours: str, broker: str) -> BackendUnavailable:
    """The error if no worker serves the broker's queue: `ours`, or that of the client that started it."""
    if queue == ours:
        return BackendUnavailable(
            f"{unserved_message(queue, f' in {target}, so nothing can be granted')}: {serve_hint(queue)}; "
            "or name another queue with ?task_queue= or TEMPORAL_TASK_QUEUE"
        )
    return BackendUnavailable(
        f"{unserved_message(queue, f', on which the broker {broker} in {target} is')}: {serve_hint(queue)}; "
        f"or, if nobody holds anything there, {terminate_hint(broker)}, so that it is started anew"
    )


def unanswered(
    target: TemporalTarget, queue: str, seconds: float, heard: float | None
) -> BackendUnavailable:
    """The error without an answer. `heard`: seconds since a worker polled; None if the server is silent."""
    told = f"{target} did not answer within {seconds:.3g} s: "
    if heard is None:
        return BackendUnavailable(told + REACHABLE)
    return BackendUnavailable(
        f"{told}is the worker of the task queue {queue!r} well, last heard of {heard:.0f} s ago? "
        f"If it has died, {serve_hint(queue)}"
    )


_INMOST = re.compile(r'.*(?:message|error): (?:"(?P<text>[^"]+)"|(?P<name>\w+\(\w+\)))')
"""Innermost message of a chain of errors, as Rust writes it."""


def _plain(said: str) -> str:
    """The message in one line, without the prefixes of the layers below."""
    line = re.sub(r"\s+", " ", said).strip()
    line = re.sub(r"^Failed client connect: (Server connection error: )?", "", line)
    inmost = _INMOST.match(line) if line.startswith("tonic::") else None
    return line if inmost is None else inmost["text"] or inmost["name"]
