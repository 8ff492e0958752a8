"""The cells of an etcd: a key each, swapped by a transaction that compares its revision.

The JSON gateway is used, which every member has on its client port. It costs a client less than any gRPC
library does, and needs none. A transaction also writes the notifications, one key for each inbox, and each
client watches its own inbox only.
"""

import asyncio
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dibs.core.codec import decode_notification, encode
from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from dibs.model import Finding, Notification
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import read_state, write_state
from dibs.stores.etcd.health import examine
from dibs.stores.etcd.url import EtcdSettings
from dibs.stores.web.client import TIMEOUT, NotConnected, WebClient
from dibs.stores.web.reading import NotHttp, Response

log = logging.getLogger("dibs")

MAX_SIZE, HARD_LIMIT = 800_000, 1_400_000
"""Bytes of a value to which an id is added, and of any value: etcd takes 1.5 MB in a transaction."""

MAX_IDLE = 32
"""Connections that are kept for the next requests."""

OTHER_MEMBER_AFTER = 2.0
"""Seconds without an answer after which another member is asked, if there are several."""

KEEP_INBOX = 3600
"""Seconds after which somebody's inbox is deleted: its process is gone, or has read it long ago."""

INBOXES_SWEPT = 100
"""Old inboxes that one client deletes, at most, after it has subscribed: etcd takes 128 in a transaction."""

OLD_TOKEN = ("revision of auth store is old", "user name is empty", "invalid auth token")
"""What etcd says of a token that a new one stands in for. It has applied nothing then."""

UNAUTHENTICATED, PERMISSION_DENIED = 16, 7
"""Codes of gRPC in the answers of the gateway."""

REQUIRE_LEADER = b"Grpc-Metadata-hasleader: true\r\n"
"""Header of a watch, which ends then if its member has lost the leader and hears of nothing."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _OldToken(BackendUnavailable):
    """A watch was refused, and a new token will do."""


class EtcdCells:
    """See `Cells`."""

    def __init__(self, settings: EtcdSettings, clock: StoreClock, now: Callable[[], float]) -> None:
        self._settings = settings
        self._clients = [
            WebClient(member, now, clock.note, MAX_IDLE) for member in settings.members
        ]
        self._current = 0
        """The member that is asked; another one once this one does not answer."""
        self._token = b""
        """The header with the token that stands for user and password; empty before the first call."""
        self._has_answered = False
        self._watches: dict[object, tuple[int, Callable[[], None]]] = {}
        """For each watch: its member, and what closes its connection."""
        self._sweep: asyncio.Task[None] | None = None
        self._keys = settings.prefix + b"/keys/"
        self._inboxes = settings.prefix + b"/inboxes/"

    # -- calls --------------------------------------------------------------------------------------

    async def _call(self, path: bytes, message: object, *, repeatable: bool) -> Any:
        """Call the gateway, and return its answer. Raises `DibsError`.

        `repeatable`: it changes nothing, so another member may be asked after any failure; else only if
        nothing was sent.
        """
        body = _encode(message)
        failure = BackendUnavailable(f"{self._settings.shown}: no member was asked")
        for _ in self._clients:
            number = self._current
            try:
                return self._read(await self._request(self._clients[number], path, body))
            except BackendUnavailable as error:  # it has no leader, or is not itself
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
                self._leave(number)  # it may hang, and whoever tries again asks another
                raise
            self._leave(number)
            if not may_repeat:
                break
        raise failure

    async def _request(self, client: WebClient, path: bytes, body: bytes) -> Response:
        """Send a request, with a token if there are users; once more with a new one if that is too old."""
        timeout = OTHER_MEMBER_AFTER if len(self._clients) > 1 else TIMEOUT
        if self._settings.user and not self._token:
            await self._authenticate(client, timeout)
        token = self._token
        answer = await client.request(b"POST", path, token, body, timeout)
        if self._settings.user and _is_of_old_token(answer):
            if self._token == token:  # else another call has got a new one meanwhile
                await self._authenticate(client, timeout)
            answer = await client.request(b"POST", path, self._token, body, timeout)
        return answer

    async def _authenticate(self, client: WebClient, timeout: float) -> None:
        said = {"name": self._settings.user, "password": self._settings.password}
        answer = await client.request(
            b"POST", b"/v3/auth/authenticate", b"", _encode(said), timeout
        )
        if answer.status != 200:
            told = _problem(answer)
            if answer.status in (400, 401, 403):
                raise Forbidden(
                    f"{self._settings.shown} does not accept the user {self._settings.user!r}: {told}"
                )
            raise BackendUnavailable(f"{self._settings.shown}: {told}")
        token = _decode(answer.body)["token"]
        self._token = b"authorization: %b\r\n" % token.encode()

    def _leave(self, number: int) -> None:
        """Ask another member next, if it is still this one that is asked; end its watches then."""
        if self._current != number or len(self._clients) == 1:
            return
        self._current = (number + 1) % len(self._clients)
        for member, close in list(self._watches.values()):
            if member == number:
                close()

    def _read(self, answer: Response) -> Any:
        """Read an answer. Raises the error that it tells of."""
        shown, self._has_answered = self._settings.shown, True
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
        if answer.status in (401, 403) or code in (UNAUTHENTICATED, PERMISSION_DENIED):
            keys = self._settings.prefix.decode(errors="replace")
            raise Forbidden(
                f"{shown}: {told}. The user needs a role with readwrite on the prefix {keys}/"
            )
        if "user name is empty" in told:
            raise Forbidden(f"{shown} wants a user: write etcd://user:password@host")
        if "too large" in told:
            raise TooLarge(told)
        raise BackendUnavailable(f"{shown}: {told}")

    def _unreachable(self, number: int, error: Exception) -> BackendUnavailable:
        member = self._settings.members[number]
        failure = BackendUnavailable(
            f"{self._settings.shown}: {member.host}:{member.port} can't be reached: {error}; check that "
            "etcd runs, and the host, port, TLS (etcds://) and firewall"
        )
        failure.__cause__ = error
        return failure

    def _broken(self, number: int, error: Exception) -> BackendUnavailable:
        member = self._settings.members[number]
        why = "did not answer in time" if isinstance(error, TimeoutError) else f"hung up: {error}"
        hint = "check the member and the network"
        if member.tls is None and not self._has_answered:
            hint += "; does this port speak TLS? Then write etcds://"
        return BackendUnavailable(
            f"{self._settings.shown}: {member.host}:{member.port} {why}; {hint}"
        )

    # -- cells --------------------------------------------------------------------------------------

    async def open(self) -> None:
        for client in self._clients:
            client.part(parting=False)
        await self.load(b"")

    async def close(self) -> None:
        self.part()
        if self._sweep is not None:
            await asyncio.wait([self._sweep])

    async def load(self, key: bytes) -> Cell:
        found = await self._call(b"/v3/kv/range", {"key": _text(self._keys + key)}, repeatable=True)
        return self._cell(key, found.get("kvs") or ())

    def _cell(self, key: bytes, found: Sequence[Any]) -> Cell:
        if not found:
            return Cell(None, None)
        return Cell(found[0]["mod_revision"], read_state(key, b64decode(found[0].get("value", ""))))

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        at = _text(self._keys + key)
        writes: list[Any] = []
        if change.state is None:
            writes.append({"requestDeleteRange": {"key": at}})
        else:
            value = write_state(change.state)
            if len(value) > (MAX_SIZE if change.grows else HARD_LIMIT):
                raise TooLarge(f"{len(value)} bytes")
            writes.append({"requestPut": {"key": at, "value": _text(value)}})
        writes += [{"requestPut": put} for put in self._puts(change.notifications)]
        compare = {"key": at, "target": "MOD", "result": "EQUAL", "mod_revision": version or "0"}
        request = {
            "compare": [compare],
            "success": writes,
            "failure": [{"requestRange": {"key": at}}],
        }
        found = await self._call(b"/v3/kv/txn", request, repeatable=False)
        if found.get("succeeded"):
            return found["header"]["revision"]
        raise SwapConflict(
            self._cell(key, found["responses"][0]["response_range"].get("kvs") or ())
        )

    def _puts(self, notifications: Sequence[Notification]) -> list[dict[str, str]]:
        """What writes notifications into inboxes: one put for each inbox, since a key is put once only."""
        inboxes: dict[str, list[Any]] = {}
        for each in notifications:
            inboxes.setdefault(each.inbox, []).append([_text(each.key), encode(each)])
        at = int(time.time())
        return [
            {
                "key": _text(self._inboxes + inbox.encode()),
                "value": _text(_encode({"at": at, "notifications": said})),
            }
            for inbox, said in inboxes.items()
        ]

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        first = self._keys + (prefix if cursor is None else max(prefix, cursor + b"\0"))
        request = {
            "key": _text(first),
            "range_end": _text(_end_of(self._keys + prefix)),
            "limit": limit,
        }
        found = await self._call(b"/v3/kv/range", request, repeatable=True)
        cells, key = [], None
        for each in found.get("kvs") or ():
            key = b64decode(each["key"]).removeprefix(self._keys)
            try:
                cells.append((key, self._cell(key, [each])))
            except DibsError as error:  # one value that is no book is no reason to list none
                log.debug("left out of a list: %s", error)
        return cells, key if found.get("more") else None

    # -- notifications ------------------------------------------------------------------------------

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        if self._settings.user and not self._token:
            await self.load(b"")  # which gets one
        try:
            end = await self._watch(inbox, receive)
        except (_OldToken, Forbidden):  # etcd 3.4 says that permission is denied in both cases
            await self.load(b"")
            end = await self._watch(inbox, receive)
        if self._sweep is None or self._sweep.done():
            self._sweep = asyncio.get_running_loop().create_task(self._sweep_inboxes())
        return end

    async def _watch(self, inbox: str, receive: Receive) -> Callable[[], None]:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended = False
        number = self._current
        client = self._clients[number]

        def line(text: bytes) -> None:
            result = _decode(text).get("result") or {}
            if result.get("canceled"):  # it may say that it was created, too
                raise self._canceled(str(result.get("cancel_reason", "")))
            if result.get("created") and not created.done():
                created.set_result(None)
            for event in result.get("events") or ():
                receive(_notifications(event.get("kv") or {}, inbox))

        def over(found: Response | Exception) -> None:
            self._watches.pop(watch, None)
            if ended:
                return
            error = self._stream_ended(number, found)
            if created.done():
                receive(error)
            else:
                created.set_exception(error)

        def end() -> None:
            nonlocal ended
            ended = True
            close()

        watch = object()
        headers = self._token + REQUIRE_LEADER
        request = {"create_request": {"key": _text(self._inboxes + inbox.encode())}}
        try:
            close = await client.lines(b"POST", b"/v3/watch", headers, _encode(request), line, over)
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
                f"{self._settings.shown} did not begin a watch in time"
            ) from error
        except BaseException:
            end()
            raise
        return end

    def _canceled(self, reason: str) -> DibsError:
        """What ends a watch that etcd refuses, or has given up."""
        told = f"{self._settings.shown} canceled the watch: {reason}"
        if self._settings.user and any(old in reason for old in OLD_TOKEN):
            return _OldToken(told)
        return Forbidden(told) if "permission denied" in reason else BackendUnavailable(told)

    def _stream_ended(self, number: int, found: Response | Exception) -> DibsError:
        error = BackendUnavailable(f"{self._settings.shown} ended the watch: {found!r:.200}")
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

    async def _sweep_inboxes(self) -> None:
        """Delete some inboxes that nobody has written to for long; their order is that of the last write.

        One that is written to meanwhile keeps all of them for another time.
        """
        request = {
            "key": _text(self._inboxes),
            "range_end": _text(_end_of(self._inboxes)),
            "limit": INBOXES_SWEPT,
            "sort_order": "ASCEND",
            "sort_target": "MOD",
        }
        with suppress(DibsError):  # it is left for another time
            found = await self._call(b"/v3/kv/range", request, repeatable=True)
            long_ago = time.time() - KEEP_INBOX
            old = [each for each in found.get("kvs") or () if _written_at(each) < long_ago]
            if old:
                await self._call(b"/v3/kv/txn", _deletion(old), repeatable=False)

    # -- the rest -----------------------------------------------------------------------------------

    async def examine(self) -> Sequence[Finding]:
        return await examine(self._settings, self._clients, self._request)

    def part(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for client in self._clients:
            client.part()

    def after_fork(self) -> None:
        for client in self._clients:
            client.close_in_child()


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def _end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which ends with no 0xff here."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])


def _notifications(kv: Any, inbox: str) -> list[Notification]:
    """What was put into an inbox, without what somebody else has written there."""
    try:
        said = _decode(b64decode(kv.get("value", "")))["notifications"]
        return [decode_notification(fields, b64decode(key), inbox) for key, fields in said]
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError):
        return []


def _deletion(found: Sequence[Any]) -> Any:
    """The transaction that deletes these keys, unless one of them has been written meanwhile."""
    return {
        "compare": [
            {
                "key": each["key"],
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": each["mod_revision"],
            }
            for each in found
        ],
        "success": [{"requestDeleteRange": {"key": each["key"]}} for each in found],
    }


def _written_at(kv: Any) -> float:
    try:
        return float(_decode(b64decode(kv.get("value", "")))["at"])
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError):
        return 0.0


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
