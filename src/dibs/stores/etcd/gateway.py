"""Calls of etcd's JSON gateway, which every member has on its client port: users, members, watches.

It costs a client less than any gRPC library does, and needs none.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from dibs.stores.cas.cells import TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.etcd.url import EtcdSettings
from dibs.stores.web.client import TIMEOUT, NotConnected, WebClient
from dibs.stores.web.reading import NotHttp, Response

OTHER_MEMBER_AFTER = 2.0
"""Seconds without an answer after which another member is asked, if there are several."""

SILENCE = 1.0
"""Seconds without any answer after which a call that is given up sooner makes the next ask another one."""

OLD_TOKEN = ("revision of auth store is old", "user name is empty", "invalid auth token")
"""Errors for an outdated token. etcd has applied nothing: authenticate and send again."""

UNAUTHENTICATED, PERMISSION_DENIED = 16, 7
"""Codes of gRPC in the answers of the gateway."""

REQUIRE_LEADER = b"Grpc-Metadata-hasleader: true\r\n"
"""Header of a watch, so that a member without a leader ends it."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _OldToken(BackendUnavailable):
    """A watch was refused, and a new token will do."""


class EtcdGateway:
    """The members of a cluster, of which one is asked at a time."""

    def __init__(self, settings: EtcdSettings, clock: StoreClock, now: Callable[[], float]) -> None:
        self.settings: EtcdSettings = settings
        self.clients: list[WebClient] = [
            WebClient(member, now, clock.note) for member in settings.members
        ]
        self._current = 0
        """The member that is asked; another one once this one does not answer."""
        self._token = b""
        """The header with the token that stands for user and password; empty before the first call."""
        self._has_answered = False
        self._silent_since: float | None = None
        """When the first request was sent that no answer has followed."""
        self._watches: dict[object, tuple[int, Callable[[], None]]] = {}
        """For each watch: its member, and what closes its connection."""

    async def open(self) -> None:
        """Keep connections from now on, and check that etcd answers. Raises `DibsError`."""
        for client in self.clients:
            client.part(parting=False)
        await self._check()

    async def _check(self) -> None:
        """Read a key. With users this also renews an outdated token."""
        await self.call(
            b"/v3/kv/range", {"key": as_text(self.settings.prefix + b"/keys/")}, repeatable=True
        )

    async def call(self, path: bytes, message: object, *, repeatable: bool) -> Any:
        """Call the gateway, and return its answer. Raises `DibsError`.

        `repeatable`: it changes nothing, so another member may be asked after any failure; else only if
        nothing was sent.
        """
        body = _encode(message)
        failure: DibsError
        for _ in self.clients:
            number = self._current
            try:
                return self._read(await self.request(self.clients[number], path, body))
            except BackendUnavailable as error:  # it has no leader, most often
                failure = error
                may_repeat = repeatable
            except DibsError:
                raise
            except NotConnected as error:
                failure = self._unreachable(number, error)
                may_repeat = True
            except (OSError, NotHttp) as error:
                failure = self._broken(number, error)
                may_repeat = repeatable
            except asyncio.CancelledError:
                if self._is_silent():  # it hangs: the next try asks another member
                    self._leave(number)
                raise
            self._leave(number)
            if not may_repeat:
                break
        raise failure

    async def request(self, client: WebClient, path: bytes, body: bytes) -> Response:
        """Send a request, with a token if there are users; once more with a new one if that is too old."""
        timeout = OTHER_MEMBER_AFTER if len(self.clients) > 1 else TIMEOUT
        if self.settings.user and not self._token:
            await self._authenticate(client, timeout)
        token = self._token
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()
        answer = await client.request(b"POST", path, token, body, timeout)
        self._silent_since = None
        if self.settings.user and _is_of_old_token(answer):
            if self._token == token:  # else another call has got a new one meanwhile
                await self._authenticate(client, timeout)
            answer = await client.request(b"POST", path, self._token, body, timeout)
        return answer

    async def _authenticate(self, client: WebClient, timeout: float) -> None:
        said = {"name": self.settings.user, "password": self.settings.password}
        answer = await client.request(
            b"POST", b"/v3/auth/authenticate", b"", _encode(said), timeout
        )
        if answer.status != 200:
            told = _problem(answer)
            if answer.status in (400, 401, 403):
                raise Forbidden(
                    f"{self.settings.shown} does not accept the user {self.settings.user!r}: {told}"
                )
            raise BackendUnavailable(f"{self.settings.shown}: {told}")
        token = _decode(answer.body)["token"]
        self._token = b"authorization: %b\r\n" % token.encode()

    def _is_silent(self) -> bool:
        since = self._silent_since
        return since is not None and asyncio.get_running_loop().time() - since >= SILENCE

    def _leave(self, number: int) -> None:
        """Ask another member next, if it is still this one that is asked; end its watches then."""
        if self._current != number or len(self.clients) == 1:
            return
        self._current, self._silent_since = (number + 1) % len(self.clients), None
        for member, close in list(self._watches.values()):
            if member == number:
                close()

    def _read(self, answer: Response) -> Any:
        """Read an answer. Raises the error in it."""
        shown, self._has_answered = self.settings.shown, True
        if answer.status == 200:
            try:
                return _decode(answer.body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BackendUnavailable(f"{shown} answered what can't be read: {error}") from error
        told, code = _problem(answer), _code(answer)
        if answer.status == 404:
            raise NotConfigured(
                f"{shown} has no JSON gateway: start etcd without --enable-grpc-gateway=false, and "
                "write the client port"
            )
        if answer.status == 400 and "CommonName" in told:
            raise NotConfigured(
                f"{shown}: {told}. With auth on, the gateway takes no user from a client certificate: "
                "give user and password in the URL, or a certificate without a CommonName"
            )
        if answer.status in (401, 403) and not code:
            raise Forbidden(
                f"{shown}: {told}. This is no answer of etcd: check the host and the port, and any "
                "proxy before etcd"
            )
        if code in (UNAUTHENTICATED, PERMISSION_DENIED):
            keys = self.settings.prefix.decode(errors="replace")
            raise Forbidden(
                f"{shown}: {told}. The user needs a role with readwrite on the prefix {keys}/"
            )
        if "user name is empty" in told:
            raise Forbidden(f"{shown} wants a user: write etcd://user:password@host")
        if "too large" in told:
            raise TooLarge(told)
        if "space exceeded" in told:
            raise BackendUnavailable(
                f"{shown}: {told}. Run etcdctl compact, defrag and alarm disarm, and start etcd with "
                "--auto-compaction-retention=1h, so that it does not fill up again"
            )
        raise BackendUnavailable(f"{shown}: {told}")

    def _unreachable(self, number: int, error: Exception) -> BackendUnavailable:
        member = self.settings.members[number]
        failure = BackendUnavailable(
            f"{self.settings.shown}: {member.authority} can't be reached: {error}; check that "
            "etcd runs, and the host, port, TLS (etcds://) and firewall"
        )
        failure.__cause__ = error
        return failure

    def _broken(self, number: int, error: Exception) -> BackendUnavailable:
        member = self.settings.members[number]
        why = "did not answer in time" if isinstance(error, TimeoutError) else f"hung up: {error}"
        hint = "check the member and the network"
        if member.tls is None and not self._has_answered:
            hint += "; does this port speak TLS? Then write etcds://"
        return BackendUnavailable(f"{self.settings.shown}: {member.authority} {why}; {hint}")

    # -- watches ------------------------------------------------------------------------------------

    async def watch(
        self, key: bytes, changed: Callable[[Any], None], over: Callable[[DibsError], None]
    ) -> Callable[[], None]:
        """Call `changed` with each value that is put under a key. Returns a function that ends this.

        `over` is called with the error if the watch ends by itself. Raises `DibsError`.
        """
        if self.settings.user and not self._token:
            await self._check()
        try:
            return await self._watch(key, changed, over)
        except (_OldToken, Forbidden):  # etcd 3.4 says that permission is denied in both cases
            await self._check()
            return await self._watch(key, changed, over)

    async def _watch(
        self, key: bytes, changed: Callable[[Any], None], over: Callable[[DibsError], None]
    ) -> Callable[[], None]:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended = False
        number = self._current
        client = self.clients[number]

        def line(text: bytes) -> None:
            result = _decode(text).get("result") or {}
            if result.get("canceled"):  # it may say that it was created, too
                raise self._canceled(str(result.get("cancel_reason", "")))
            if result.get("created") and not created.done():
                created.set_result(None)
            for event in result.get("events") or ():
                changed(event.get("kv") or {})

        def stream_over(found: Response | Exception) -> None:
            self._watches.pop(watch, None)
            if ended:
                return
            error = self._stream_ended(number, found)
            if created.done():
                over(error)
            else:
                created.set_exception(error)

        def end() -> None:
            nonlocal ended
            ended = True
            close()

        watch = object()
        headers = self._token + REQUIRE_LEADER
        request = {"create_request": {"key": as_text(key)}}
        try:
            close = await client.lines(
                b"POST", b"/v3/watch", headers, _encode(request), line, stream_over
            )
        except OSError as error:
            self._leave(number)
            raise self._unreachable(number, error) from error
        if not created.done():
            self._watches[watch] = (number, close)
        if number != self._current:
            close()  # another call has found that this member does not answer
        try:
            async with asyncio.timeout(client.endpoint.connect_timeout):
                await created
        except TimeoutError as error:
            end()
            self._leave(number)
            raise BackendUnavailable(
                f"{self.settings.shown} did not begin a watch in time"
            ) from error
        except BaseException:
            end()
            raise
        return end

    def _canceled(self, reason: str) -> DibsError:
        """The error for a watch that etcd refused or cancelled."""
        told = f"{self.settings.shown} canceled the watch: {reason}"
        if self.settings.user and any(old in reason for old in OLD_TOKEN):
            return _OldToken(told)
        return Forbidden(told) if "permission denied" in reason else BackendUnavailable(told)

    def _stream_ended(self, number: int, found: Response | Exception) -> DibsError:
        error = BackendUnavailable(f"{self.settings.shown} ended the watch: {found!r:.200}")
        try:
            if isinstance(found, DibsError):
                raise found
            if isinstance(found, Response) and found.status != 200:
                self._read(found)
        except (_OldToken, Forbidden, NotConfigured) as refusal:
            return refusal
        except BackendUnavailable as told:
            error = told
        self._leave(number)
        return error

    # -- ends ---------------------------------------------------------------------------------------

    def part(self) -> None:
        """See `Cells`."""
        for client in self.clients:
            client.part()

    def after_fork(self) -> None:
        """See `Cells`."""
        for client in self.clients:
            client.close_in_child()


def as_text(raw: bytes) -> str:
    """Keys and values, as the gateway takes them."""
    return b64encode(raw).decode()


def _problem(answer: Response) -> str:
    """What an answer says went wrong."""
    try:
        said = _decode(answer.body)
        return str(said.get("message") or said.get("error") or said["result"]["error"]["message"])
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, LookupError, TypeError):
        text = answer.body[:200].decode("utf-8", "replace").strip()
        return f"status {answer.status}{': ' if text else ''}{text}"


def _is_of_old_token(answer: Response) -> bool:
    if answer.status == 200:
        return False
    return answer.status == 401 or any(told in _problem(answer) for told in OLD_TOKEN)


def _code(answer: Response) -> int:
    try:
        return int(_decode(answer.body).get("code", 0))
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, ValueError, TypeError):
        return 0
