"""Temporal's errors as errors of Dibs: what happened, where, and what to do about it."""

import re
from asyncio import CancelledError
from collections.abc import Generator
from contextlib import contextmanager

from temporalio.client import (
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.stores.temporal.url import TemporalTarget


@contextmanager
def explained(target: TemporalTarget) -> Generator[None]:
    """Raise errors of Temporal's client as errors of Dibs. A cancelled call raises `CancelledError`."""
    try:
        yield
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, CancelledError):
            raise error.__cause__ from None
        raise explain(TimeoutError(), target) from error
    except WorkflowUpdateFailedError as error:
        if getattr(error.cause, "type", "") == "IncompatibleVersion":
            raise IncompatibleVersion(f"{target}: {error.cause}") from error
        raise BackendUnavailable(
            f"{target}: the broker could not answer ({error.cause})"
        ) from error
    except RPCError as error:
        raise explain(error, target) from error


def explain(error: Exception, target: TemporalTarget) -> DibsError:
    """Convert an error of Temporal's client or worker, which may have nothing but a text."""
    said = str(error) or SILENT
    known = f"{error.status.name} {said}" if isinstance(error, RPCError) else said
    for sign, kind, hint in _SIGNS:
        if re.search(sign, known, re.IGNORECASE):
            return kind(f"{target} {hint.format(target.namespace)} ({said})")
    return BackendUnavailable(f"{target} could not do it ({said})")


SILENT = "no answer in time"

_SIGNS: tuple[tuple[str, type[DibsError], str], ...] = (
    ("ExecuteMultiOperation|UNIMPLEMENTED", IncompatibleVersion,
     "is too old: it must take an update together with a start, as Temporal 1.28 and newer do by default"),
    (r"not_?found\W+(message\W+)?namespace ", NotConfigured,
     ("can't be used, as there is no such namespace: check the URL, or make it with "
     "`temporal operator namespace create --namespace {}`")),
    ("PERMISSION_?DENIED|UNAUTHENTICATED", Forbidden,
     ("refuses us: check the API key (TEMPORAL_API_KEY, or a profile's) or the client's certificate, and "
     "that they are for this namespace")),
    ("dns error", BackendUnavailable, "can't be reached: there is no such host"),
    ("InvalidContentType", NotConfigured,
     "can't be reached: it does not speak TLS: add ?tls=false, or leave out the API key"),
    ("certificate", NotConfigured,
     "can't be reached: set TEMPORAL_TLS_SERVER_CA_CERT_PATH, and name the host as the certificate has it"),
    ("broken pipe|reset|h2 protocol", BackendUnavailable,
     "can't be reached: does it want TLS? add ?tls=true"),
    (f"tcp connect|transport|{SILENT}", BackendUnavailable,
     "can't be reached: check that the server runs, and the host, port and firewall"),
)  # fmt: skip
"""Patterns for an error's status and text, the error of Dibs, and advice. The first that matches counts."""


def is_no_broker(error: RPCError) -> bool:
    """Whether no broker runs, while the namespace exists."""
    return error.status is RPCStatusCode.NOT_FOUND and not re.match(
        "namespace ", error.message, re.IGNORECASE
    )
