"""Calls of the API server, and what its answers mean.

Plain REST: four verbs do not pay for a client library.
"""

import asyncio
import random
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from dibs.errors import BackendUnavailable, DibsError, Forbidden, InvalidRequest, NotConfigured
from dibs.stores.cas.clock import StoreClock
from dibs.stores.kubernetes.access import Access
from dibs.stores.web.client import NotConnected, WebClient
from dibs.stores.web.reading import NotHttp, Response

RETRY_AFTER = 1.0
"""Seconds after which a busy server is asked again, if it does not say when."""

BUSY = 1.0
"""Seconds without any answer but 429 after which requests fail."""

RBAC = "allow get, create, update, delete, list and watch on leases: deploy/kubernetes-rbac.yaml"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Written(msgspec.Struct):
    metadata: _Metadata


_decode_written = msgspec.json.Decoder(_Written).decode


class KubernetesApi:
    """The API server, in one event loop."""

    def __init__(
        self, shown: str, access: Access, clock: StoreClock, now: Callable[[], float]
    ) -> None:
        self.shown: str = shown
        self.access: Access = access
        self._clock = clock
        self._now = now
        self._busy_since: float | None = None
        """When the first 429 came after which there was no other answer."""
        group = f"{access.prefix}/apis/coordination.k8s.io/v1"
        self.leases: str = f"{group}/namespaces/{quote(access.namespace)}/leases"
        """The path of all Leases of the namespace."""

    @cached_property
    def client(self) -> WebClient:
        access = self.access
        through = access.proxy if access.server.scheme == "https" else None
        return WebClient(
            access.endpoint,
            self._now,
            self._clock.note,
            tunnel=None if through is None else through.tunnel,
            server_name=access.server_name,
        )

    def headers(self, token: bytes) -> bytes:
        """Headers of each request."""
        access = self.access
        proxied = access.proxy.header if access.proxy and access.server.scheme == "http" else b""
        return b"accept: application/json\r\nuser-agent: dibs\r\n%b%b" % (token, proxied)

    async def request(self, method: str, path: str, body: object = None) -> Response:
        """Send a request, again if the server is busy, and once more with new credentials after a 401.

        Raises `BackendUnavailable` if there is no answer, or if the server is still busy.
        """
        said = b"" if body is None else _encode(body)
        is_new, may_repeat = False, method == "GET"
        while True:
            token = await self.access.credentials.header()
            headers = self.headers(token)
            try:
                answer = await self.client.request(method.encode(), path.encode(), headers, said)
            except NotConnected as error:
                raise self.unreachable(error) from error
            except (OSError, NotHttp) as error:
                if not may_repeat:  # perhaps the server had closed the connection already
                    raise self._hung_up(error) from error
                may_repeat = False
                continue
            if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                if self._is_busy_for_long():
                    raise self._busy(answer)
                await asyncio.sleep(_retry_after(answer) * random.uniform(1, 1.5))  # noqa: S311
                continue
            self._busy_since = None
            is_known = answer.status != HTTPStatus.UNAUTHORIZED
            if is_known or is_new or not self.access.credentials.renew(token):
                return answer
            is_new = True
            self.client.leave()  # a plugin may make another client certificate

    def unreachable(self, error: Exception) -> DibsError:
        """The error for a server to which no connection can be made."""
        return BackendUnavailable(
            f"{self.shown}: {self.access.server.netloc} can't be reached: {error}; check the cluster and "
            f"{self.access.source}"
        )

    def _hung_up(self, error: Exception) -> DibsError:
        """The error for a connection that ended before the answer, as it also does if a server wants another
        client certificate.
        """
        told = f"{self.shown}: the API server hung up: {error}"
        if self.access.server.scheme == "https":
            told += f"; if it always does, check the client certificate of {self.access.source}"
        return BackendUnavailable(told)

    def _is_busy_for_long(self) -> bool:
        """Whether all answers of the last second were 429. Then the call fails, and callers try again."""
        now = asyncio.get_running_loop().time()
        self._busy_since = self._busy_since or now
        return now - self._busy_since >= BUSY

    def _busy(self, answer: Response) -> DibsError:
        return BackendUnavailable(
            f"{self.shown}: the API server {self.access.server.netloc} is busy and throttles requests (429): "
            f"{message_of(answer)}. Use Dibs less often, or raise the server's limits"
        )

    def problem(self, answer: Response, wanted: str) -> DibsError:
        """The error in an answer. `wanted` is the verb that was tried."""
        told, shown, access = message_of(answer), self.shown, self.access
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return Forbidden(
                f"{shown}: the API server does not know who we are: {told}. Check {access.source}, which "
                f"gives {access.credentials.shown}"
            )
        if answer.status == HTTPStatus.FORBIDDEN:
            if is_refusal(told):
                return Forbidden(f"{shown}: the API server refuses to {wanted} a Lease: {told}")
            return Forbidden(
                f"{shown}: no right to {wanted} Leases in the namespace {access.namespace!r}: {told}. "
                f"A Role must {RBAC}"
            )
        if answer.status == HTTPStatus.NOT_FOUND:
            return NotConfigured(
                f"{shown}: {told}: check that the namespace {access.namespace!r} exists, and that this "
                f"is a Kubernetes API server: {access.server.netloc}"
            )
        if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            return InvalidRequest(f"{shown}: the API server refuses to {wanted} a Lease: {told}")
        return BackendUnavailable(f"{shown}: {told}")

    def read(self, answer: Response, decode: Callable[[bytes], Any] = _decode) -> Any:
        """The object in an answer."""
        try:
            return decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BackendUnavailable(
                f"{self.shown} answered what can't be read: {error}"
            ) from error

    def read_version(self, answer: Response) -> str:
        """The resourceVersion of what was written. All else in it is known, and longer."""
        return str(self.read(answer, _decode_written).metadata.resource_version)


def is_refusal(told: str) -> bool:
    """Whether a 403 is about the object, not about rights: a quota, a policy, or a namespace that ends."""
    lacks_right = 'User "' in told and " cannot " in told
    return not lacks_right and ("is forbidden: " in told or "denied the request" in told)


def message_of(answer: Response) -> str:
    """The error message in an answer."""
    try:
        return str(_decode(answer.body)["message"])
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError):
        text = answer.body[:200].decode("utf-8", "replace").strip()
        return f"status {answer.status}{': ' if text else ''}{text}"


def details_of(answer: Response) -> dict[str, Any]:
    """The `details` of an API `Status`; empty if the answer is none."""
    try:
        return dict(_decode(answer.body)["details"])
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, ValueError):
        return {}


def _retry_after(answer: Response) -> float:
    try:
        return max(float(answer.headers.get("retry-after", RETRY_AFTER)), 0.0)
    except ValueError:
        return RETRY_AFTER
