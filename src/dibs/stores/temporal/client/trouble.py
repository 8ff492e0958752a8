"""What Temporal's errors mean to whoever wanted a lease: what happened, where, what to do."""

import re
from typing import TYPE_CHECKING

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.stores.temporal.client.settings import Target
from dibs.stores.temporal.protocol.queues import serve, terminate, unserved

if TYPE_CHECKING:
    from temporalio.service import RPCError

REACHABLE = "check that the server runs, and the host, port and firewall"


def unreachable(error: Exception, target: Target) -> DibsError:
    """No connection could be made; what trying again can't mend is `NotConfigured`."""
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
        hint = "name the CA with ?tls_ca=FILE, and the host as the certificate has it"
    elif "broken pipe" in whole or "reset" in whole or "h2 protocol" in whole:
        hint = "does it want TLS? add ?tls=true"
    return kind(f"{target} can't be reached: {hint} ({_plain(str(error))})")


def explain(error: "RPCError", target: Target) -> DibsError:
    """The error that callers see, in the stead of the server's own."""
    from temporalio.service import RPCStatusCode as Code

    said = f"({_plain(error.message)})"
    if is_no_namespace(error):
        return NotConfigured(
            f"{target.address} has no namespace {target.namespace!r} {said}: check the URL, or make it "
            f"with `temporal operator namespace create --namespace {target.namespace}`"
        )
    if error.status in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return Forbidden(
            f"{target} refuses us {said}: check the API key (TEMPORAL_API_KEY, or a profile's) or the "
            "client's certificate, and that they are for this namespace"
        )
    if error.status is Code.UNIMPLEMENTED:
        return IncompatibleVersion(
            f"{target} is too old {said}: its server must know workflow updates, as 1.25 and newer do by "
            "themselves"
        )
    if error.status is Code.RESOURCE_EXHAUSTED:
        return BackendUnavailable(
            f"{target} takes no more calls for now {said}: too much is asked of it or of one key, or the "
            "workers of the queue don't answer"
        )
    return BackendUnavailable(f"{target} could not apply it {said}")


def explain_text(error: Exception, target: Target) -> DibsError | None:
    """Likewise of an error whose status the SDK's core tells in a text; None if it tells none."""
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
    """What was not found is the namespace, rather than a workflow in it."""
    from temporalio.service import RPCStatusCode

    return error.status is RPCStatusCode.NOT_FOUND and "namespace" in error.message.lower()


def failed(cause: BaseException, target: Target) -> DibsError:
    """A broker refused a call, or ended before it could answer."""
    if getattr(cause, "type", "") == "IncompatibleVersion":
        return IncompatibleVersion(f"{target}: {cause}")
    return BackendUnavailable(f"{target}: the broker could not answer ({_plain(str(cause))})")


def no_worker(target: Target, queue: str) -> BackendUnavailable:
    """There is none that could run a broker."""
    return BackendUnavailable(
        f"{unserved(queue, f' in {target}, so nothing can be granted')}: {serve(queue)}; or name another "
        "queue with ?task_queue= or TEMPORAL_TASK_QUEUE"
    )


def astray(target: Target, queue: str, broker: str) -> BackendUnavailable:
    """A broker is on another queue than ours, where somebody who named that one has started it."""
    return BackendUnavailable(
        f"{unserved(queue, f', on which the broker {broker} in {target} is')}: {serve(queue)}; or, if "
        f"nobody holds anything there, {terminate(broker)}, so that it is started anew"
    )


def silent(target: Target, queue: str, seconds: float, heard: float) -> BackendUnavailable:
    """There is, or was, a worker, and no answer came. `heard`: so long ago it was heard of."""
    return BackendUnavailable(
        f"{target} did not answer within {seconds:.3g} s: is the worker of the task queue {queue!r} "
        f"well, last heard of {heard:.0f} s ago? If it has died, {serve(queue)}"
    )


def deaf(target: Target, seconds: float) -> BackendUnavailable:
    """Not even the server itself answers."""
    return BackendUnavailable(f"{target} did not answer within {seconds:.3g} s: {REACHABLE}")


_INMOST = re.compile(r'.*(?:message|error): (?:"(?P<text>[^"]+)"|(?P<name>\w+\(\w+\)))')
"""The last that a chain of errors says, as Rust writes it."""


def _plain(said: str) -> str:
    """One line, without the wrappings of the layers below."""
    line = re.sub(r"\s+", " ", said).strip()
    line = re.sub(r"^Failed client connect: (Server connection error: )?", "", line)
    inmost = _INMOST.match(line) if line.startswith("tonic::") else None
    return line if inmost is None else inmost["text"] or inmost["name"]
