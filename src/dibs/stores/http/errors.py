"""Errors of the service and of the connection to it, and what to do. None shows an API key."""

import ssl
from contextlib import suppress

import msgspec

from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.stores.http import wire
from dibs.stores.http.url import HOW, ApiKey, HttpSettings
from dibs.stores.web.endpoint import reason
from dibs.stores.web.reading import NotHttp, Response

_BUSY = frozenset({408, 413, 421, 425, 429, 500, 502, 503, 504, 507, *range(520, 531)})
"""Statuses of passing trouble, the service's or a proxy's. Cloudflare has 520 to 530."""

_BEGINS = "dibs_"
"""How every API key begins."""


def is_ours(answer: Response) -> bool:
    """Whether the service itself answered, not a proxy."""
    return wire.SERVER_HEADER in answer.headers


def check_format(answer: Response, settings: HttpSettings) -> None:
    """Raises `IncompatibleVersion` for a service with another format."""
    theirs = answer.headers.get(wire.FORMAT_HEADER, str(wire.FORMAT))
    if theirs != str(wire.FORMAT):
        raise IncompatibleVersion(
            f"{settings.shown} speaks format {theirs}, and this release of dibs format "
            f"{wire.FORMAT}: install the release that the service has, or a newer one"
        )


def explain(answer: Response, settings: HttpSettings, key: ApiKey | None) -> DibsError:
    """Return the error that callers see for an answer other than 200."""
    if not is_ours(answer):
        return _stranger(answer, settings)
    problem = _problem(answer)
    told = problem.detail or problem.title or f"status {answer.status}"
    if answer.status == 401:
        return _not_let_in(told, settings, key)
    if answer.status == 403:
        return Forbidden(f"{settings.shown}: {told}")
    if answer.status in (404, 405):
        hint = "is the path in the URL right, and is the service of this release or a newer one?"
        return NotConfigured(f"{settings.shown} knows nothing of what is asked: {hint}")
    error = BackendUnavailable if answer.status in _BUSY else DibsError
    return error(f"{settings.shown}: {told}", retry_after=_retry_after(answer, problem))


def _not_let_in(told: str, settings: HttpSettings, key: ApiKey | None) -> DibsError:
    if key is None:
        return Forbidden(f"{settings.shown} requires an API key: {HOW}")
    if not _may_be_key(key.secret):
        return Forbidden(
            f"{settings.shown}: what {key.place} has is no API key: one begins with {_BEGINS}"
        )
    return Forbidden(
        f"{settings.shown} does not accept the API key from {key.place}: {told}; "
        "run `dibs keys list` on the server to see valid keys"
    )


def _may_be_key(secret: str) -> bool:
    """Whether it looks like an API key, or like a token, which has two dots."""
    return secret.startswith(_BEGINS) or secret.count(".") == 2


def _problem(answer: Response) -> wire.Problem:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(answer.body, type=wire.Problem)
    return wire.Problem("about:blank", "", answer.status, "")


def _retry_after(answer: Response, problem: wire.Problem) -> float | None:
    if problem.retry_after is not None:
        return problem.retry_after
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isdecimal() and len(said) < 6 else None


def _stranger(answer: Response, settings: HttpSettings) -> DibsError:
    """A proxy answered, or a server of another kind."""
    status = answer.status
    if status in _BUSY:
        return BackendUnavailable(
            f"{settings.shown}: a proxy in front of the service answered {status}; check that the "
            "service runs",
            retry_after=_retry_after(answer, _problem(answer)),
        )
    if 300 <= status < 400:
        where = answer.headers.get("location", "nowhere")[:200]
        return NotConfigured(
            f"{settings.shown} redirects to {where}: write the URL where the service itself is"
        )
    hint = "check the host, port and path"
    if settings.tls is None and status == 400:
        hint += "; does this port want TLS? Then write https://"
    return NotConfigured(f"{settings.shown} answers ({status}), but is no Dibs service: {hint}")


def unreadable(settings: HttpSettings, error: Exception) -> DibsError:
    """The service sent an answer that makes no sense."""
    failure = BackendUnavailable(f"{settings.shown} answered what can't be read: {error}")
    failure.__cause__ = error
    return failure


def unreachable(error: Exception, settings: HttpSettings) -> DibsError:
    """No connection could be made, with TLS or without."""
    if isinstance(error, DibsError):
        return error
    why = "it did not answer in time" if isinstance(error, TimeoutError) else reason(error)
    hint = "check that the server runs, and the host, port and firewall"
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "add ?cafile=ca.pem, and use the host name in the certificate"
    elif isinstance(error, ssl.SSLError):
        hint = "does this port speak TLS? https:// does, http:// does not"
    elif _is_hang_up(error) or (isinstance(error, TimeoutError) and settings.tls is not None):
        hint += "; does this port speak TLS? https:// does, http:// does not"
    failure = BackendUnavailable(f"{settings.shown} can't be reached: {why}; {hint}")
    failure.__cause__ = error
    return failure


def _is_hang_up(error: Exception) -> bool:
    """The other side closed the connection without an answer."""
    silent = isinstance(error, ConnectionError | EOFError)
    return silent and not isinstance(error, ConnectionRefusedError)


def broken(error: Exception, settings: HttpSettings, *, silent: bool = False) -> DibsError:
    """A connection broke during a call, so that the commands may have been applied or not.

    `silent`: nothing had ever arrived on it.
    """
    if isinstance(error, DibsError):
        return error
    if silent and _is_hang_up(error):
        return unreachable(error, settings)
    if isinstance(error, NotHttp):
        hint = "" if settings.tls else "; does this port want TLS? Then write https://"
        return NotConfigured(
            f"{settings.shown} answers, but is no Dibs service ({error}): "
            f"check the host and port{hint}"
        )
    why, hint = f"hung up: {error}", "check the service and the network"
    if isinstance(error, TimeoutError):
        why = "did not answer in time"
        hint = "check the service, its store and the network"
    failure = BackendUnavailable(f"{settings.shown} {why}; {hint}")
    failure.__cause__ = error
    return failure
