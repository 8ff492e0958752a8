"""The cells of a NATS: keys of a JetStream bucket, swapped by their last sequence number.

The client library connects and carries requests. What is asked is JetStream's own protocol: its answers tell
why a swap was refused, reads go to the leader of the bucket, and the server's time comes along.
"""

import asyncio
import json
import logging
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoRespondersError

from dibs.core.codec import decode_notification, encode
from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    NotConfigured,
)
from dibs.model import Finding, Notification
from dibs.stores.cas.cells import Cell, Change, Receive, SwapConflict, TooLarge, load_readable
from dibs.stores.cas.clock import StoreClock
from dibs.stores.cas.format import read_state, write_state
from dibs.stores.loop_thread import keep_for_ever
from dibs.stores.web.endpoint import is_here

DATED_FOR = 30.0
"""Seconds after which the server is asked for its time again."""

TIMEOUT = 5
"""Seconds that an answer may take at most; callers may allow less."""

SILENCE = 1.0
"""Seconds without an answer after which a call that fails also ends the connection, which may hang."""

OVERHEAD = 1024
"""Bytes of a message beside its value, at most."""

NO_BUCKET, BUCKET_EXISTS, NO_MESSAGE, TOO_LARGE = 10059, 10058, 10037, 10054
NO_JETSTREAM, WRONG_SEQUENCE = (0, 10039, 10076), (10071, 10164)
"""Codes of JetStream's errors; 0 stands for a request that nobody answers."""

log: logging.Logger = logging.getLogger("dibs")

_DELETED = {"KV-Operation": "DEL"}
_NOT_ALLOWED = "permissions violation"


class NatsCells:
    """See `Cells`."""

    def __init__(
        self,
        shown: str,
        bucket: str,
        replicas: int | None,
        connect: Callable[..., Awaitable[None]],
        clock: StoreClock,
        now: Callable[[], float],
    ) -> None:
        self._shown = shown
        self._bucket = bucket
        self._replicas = replicas
        self._connect = connect
        self._clock = clock
        self._now = now
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._calls: dict[asyncio.Timeout, str] = {}
        """Calls that wait for an answer, and the subjects that they were sent to."""
        self._receivers: dict[int, Receive] = {}
        self._trouble = ""
        """The last error that the server reported."""
        self._dated_at = -inf
        self._heard = 0
        """How many messages had arrived when the oldest unanswered request was sent."""
        self._silent_since = 0.0
        self._ending: set[asyncio.Task[None]] = set()

    # -- connection ---------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._connected()

    async def _connected(self) -> Client:
        """The connection, which is made anew if it was lost. Raises `DibsError`."""
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._client is None:
                self._client = await self._new_client()
                self._heard = -1
            return self._client

    async def _new_client(self) -> Client:
        client = Client()

        async def failed(error: Exception) -> None:
            self._trouble = str(error) or repr(error)
            if _NOT_ALLOWED in self._trouble:
                self._end_calls(self._is_forbidden)

        async def closed() -> None:
            if self._client is client:
                self._lost()

        try:
            self._trouble = ""
            await self._connect(client, error_cb=failed, closed_cb=closed)
            await self._find_bucket(client)
        except BaseException as error:
            self._in_background(client.close())
            if isinstance(error, (Error, OSError)) and not isinstance(error, DibsError):
                raise self._failure("", error) from error
            raise
        return client

    async def _find_bucket(self, client: Client) -> None:
        """Make the bucket if there is none. Raises `NotConfigured` if leases could vanish from it."""
        try:
            found = await self._info(client=client)
        except _Refused as refused:
            if refused.code in NO_JETSTREAM:
                raise NotConfigured(
                    f"{self._shown}: JetStream is off, for this account at least: start nats-server with "
                    "--jetstream, or enable it for the account"
                ) from refused
            if refused.code != NO_BUCKET:
                raise
            config = {
                "name": f"KV_{self._bucket}",
                "subjects": [f"$KV.{self._bucket}.>"],
                "max_msgs_per_subject": 1,
                "num_replicas": self._replicas or 1,
                "storage": "file",
                "discard": "new",
                "allow_rollup_hdrs": True,
                "deny_delete": True,
            }
            try:
                await self._ask(f"STREAM.CREATE.KV_{self._bucket}", config, client)
            except _Refused as other:
                if other.code != BUCKET_EXISTS:  # another client has just made it
                    raise
            found = await self._info(client=client)
        config = found["config"]
        for flaw, told in (
            (config.get("storage") != "file", "is kept in memory"),
            (config.get("max_age"), "deletes what is old (its TTL)"),
            (config.get("discard") != "new" and _limits(config), "deletes what is old when full"),
        ):
            if flaw:
                raise NotConfigured(
                    f"{self._shown}: the bucket {self._bucket!r} {told}, so leases could vanish: name "
                    "another one by bucket=, which is then made as it has to be"
                )

    def _note_sent(self, client: Client) -> None:
        if client.stats["in_msgs"] != self._heard:
            self._heard = client.stats["in_msgs"]
            self._silent_since = asyncio.get_running_loop().time()

    def _leave_if_silent(self, client: Client) -> None:
        """A request has ended. Leave a connection that answers nobody, so that the next call makes a new one.

        Callers with little time are no reason by themselves: what counts is the time since the first request
        that nothing came after.
        """
        silence = asyncio.get_running_loop().time() - self._silent_since
        if client.stats["in_msgs"] == self._heard and silence >= SILENCE:
            self._leave(client, f"nothing came for {silence:.1f} s")

    def _leave(self, client: Client, why: str) -> None:
        if client is self._client:
            self._trouble = why
            self._lost()
            self._in_background(client.close())

    def _lost(self) -> None:
        """The connection has ended: so do all calls and subscriptions."""
        self._client = None
        self._end_calls(lambda subject: True)
        receivers, self._receivers = self._receivers, {}
        for receive in receivers.values():
            receive(BackendUnavailable(f"{self._shown} closed the connection: {self._trouble}"))

    def _end_calls(self, which: Callable[[str], bool]) -> None:
        for scope, subject in list(self._calls.items()):
            if which(subject):
                del self._calls[scope]
                scope.reschedule(asyncio.get_running_loop().time())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin at once: the loop may end before anything else is run."""

        async def quietly() -> None:
            # the client asserts that it was connected, which a wrong certificate file prevents
            with suppress(Error, OSError, AssertionError, asyncio.CancelledError):
                await work

        task = asyncio.Task(quietly(), loop=asyncio.get_running_loop(), eager_start=True)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed
        if not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        self.part()
        if self._ending:
            await asyncio.wait(self._ending, timeout=TIMEOUT)

    def part(self) -> None:
        client, self._client = self._client, None
        self._receivers.clear()
        if client is not None:
            self._in_background(client.close())

    def after_fork(self) -> None:
        """The socket stays open, as closing it would take it from the parent's loop."""
        keep_for_ever(self._client, *self._ending)
        self._client = None

    # -- calls --------------------------------------------------------------------------------------

    async def _request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        client: Client | None = None,
    ) -> Any:
        """Send a request, and return the answer. Raises `_Refused` for an error in it."""
        client = client or await self._connected()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._calls[scope] = subject
                self._note_sent(client)
                answer = await client.request(subject, payload, TIMEOUT, headers=headers)
            said = json.loads(answer.data)
        except NoRespondersError as error:
            raise _Refused(self._shown, 0, f"nobody answers on {subject}") from error
        except (Error, OSError, ValueError) as error:
            raise self._failure(subject, error) from error
        finally:
            self._calls.pop(scope, None)
            self._leave_if_silent(client)
        if "error" in said:
            told = said["error"]
            if told.get("err_code") == NO_BUCKET:  # with a new connection it is made anew
                self._leave(client, f"the bucket {self._bucket!r} is gone")
            raise _Refused(self._shown, told.get("err_code", 0), told.get("description", ""))
        return said

    async def _ask(self, what: str, said: Mapping[str, Any], client: Client | None = None) -> Any:
        """Call JetStream's API."""
        return await self._request(f"$JS.API.{what}", json.dumps(said).encode(), client=client)

    async def _info(self, client: Client | None = None, **said: Any) -> Any:
        """Ask for the bucket's state. The answer also has the server's time."""
        sent = self._now()
        found = await self._ask(f"STREAM.INFO.KV_{self._bucket}", said, client)
        heard = self._now()
        with suppress(LookupError, ValueError):  # older servers do not tell
            date = datetime.fromisoformat(found["ts"]).timestamp()
            self._clock.note(date, 1e-6, sent, heard)
        self._dated_at = heard
        return found

    def _is_forbidden(self, subject: str) -> bool:
        return _NOT_ALLOWED in self._trouble and f'"{subject.lower()}"' in self._trouble.lower()

    def _failure(self, subject: str, error: Exception) -> DibsError:
        said = str(error) or repr(error)
        if self._trouble and self._trouble not in said:
            said += f" ({self._trouble})"
        text = f"{self._shown}: {said}"
        if self._is_forbidden(subject) or (not subject and "uthorization" in f"{error}{said}"):
            return Forbidden(
                f"{text}. The user needs to publish to $KV.{self._bucket}.>, {self._bucket}.inbox.> and "
                f"$JS.API.STREAM.*.KV_{self._bucket} and $JS.API.STREAM.MSG.GET.KV_{self._bucket}, and to "
                f"subscribe to _INBOX.> and {self._bucket}.inbox.>"
            )
        return BackendUnavailable(
            f"{text}; check that the NATS server runs, and the host, port and firewall"
        )

    # -- cells --------------------------------------------------------------------------------------

    def _subject(self, key: bytes) -> str:
        return f"$KV.{self._bucket}.{_escape(key)}"

    async def _date(self) -> None:
        if self._now() - self._dated_at > DATED_FOR:
            await self._info()

    async def load(self, key: bytes) -> Cell:
        await self._date()
        asked = {"last_by_subj": self._subject(key)}
        try:
            found = await self._ask(f"STREAM.MSG.GET.KV_{self._bucket}", asked)
        except _Refused as refused:
            if refused.code != NO_MESSAGE:
                raise
            return Cell(None, None)
        value = b64decode(found["message"].get("data", ""))
        where = f"in the bucket {self._bucket!r} under the key {_escape(key)}"
        state = read_state(value, where) if value else None
        return Cell(found["message"]["seq"], state, where)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        await self._date()
        client, subject = await self._connected(), self._subject(key)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(version or 0)}
        value = b"" if change.state is None else write_state(change.state)
        most = client.max_payload - OVERHEAD
        if len(value) > (3 * most // 4 if change.grows else most):
            raise TooLarge(f"{len(value)} bytes")
        if change.state is None:
            headers |= _DELETED
        try:
            answer = await self._swap(subject, value, headers, client, is_dated=change.is_dated)
        except _Refused as refused:
            if refused.code in WRONG_SEQUENCE:
                raise SwapConflict from refused
            if refused.code == TOO_LARGE:
                raise TooLarge(str(refused)) from refused
            raise
        if change.state is None:  # the mark of the deletion, unless the key was written since
            until = {"filter": subject, "seq": answer["seq"] + 1}
            await self._ask(f"STREAM.PURGE.KV_{self._bucket}", until)
        for inbox, said in _by_inbox(change.notifications).items():
            with suppress(Error, OSError):  # they only save time
                await client.publish(f"{self._bucket}.inbox.{inbox}", json.dumps(said).encode())
        return answer["seq"]

    async def _swap(
        self,
        subject: str,
        value: bytes,
        headers: dict[str, str],
        client: Client,
        *,
        is_dated: bool,
    ) -> Any:
        """Send a swap; if it dates leases, ask for the server's time right behind it.

        The answer to a swap does not have it, and our own clock may have stood still since.
        """
        swap = self._request(subject, value, headers, client)
        if not is_dated:
            return await swap
        found: tuple[Any, Any] = await asyncio.gather(
            swap, self._info(client), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found[0]

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        start, keys, offset = len(f"$KV.{self._bucket}."), list[bytes](), 0
        while True:  # the server lists them in no order
            found = await self._info(subjects_filter=f"$KV.{self._bucket}.>", offset=offset)
            subjects = found["state"].get("subjects") or {}
            keys += [_unescape(subject[start:]) for subject in subjects]
            offset += len(subjects)
            if not subjects or offset >= found.get("total", 0):
                break
        left = sorted(
            key for key in set(keys) if key.startswith(prefix) and (cursor is None or key > cursor)
        )
        keys = left[:limit]
        return await load_readable(self, keys), keys[-1] if len(left) > limit else None

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        client, subject = await self._connected(), f"{self._bucket}.inbox.{inbox}"

        async def arrived(message: Msg) -> None:
            receive(_notifications(message.data, inbox))

        try:
            subscription = await client.subscribe(subject, cb=arrived)
            await client.flush(TIMEOUT)
        except (Error, OSError) as error:
            raise self._failure(subject, error) from error
        if self._is_forbidden(subject):
            raise self._failure(subject, Error(self._trouble))
        number = id(subscription)
        self._receivers[number] = receive

        def end() -> None:
            if self._receivers.pop(number, None) is not None:
                self._in_background(subscription.unsubscribe())

        return end

    async def examine(self) -> Sequence[Finding]:
        client = await self._connected()
        config, cluster = (found := await self._info())["config"], found.get("cluster") or {}
        findings = [Finding("server", "ok", f"NATS {_version(client)}")]
        replicas = config["num_replicas"]
        if self._replicas not in (None, replicas):
            told = (
                f"the bucket {self._bucket!r} has {replicas}: replicas={self._replicas} in the URL has no "
                "effect, as it is for a new bucket"
            )
            advice = f"nats stream edit KV_{self._bucket} --replicas {self._replicas}"
            findings.append(Finding("replicas", "warning", told, advice))
        elif replicas == 1:
            told = "the bucket is on one server: leases are out of reach while it is down"
            findings.append(Finding("replicas", "note", told, "three survive the loss of one"))
        else:
            behind = [each["name"] for each in cluster.get("replicas") or () if each.get("offline")]
            told = f"{replicas} replicas{'; offline: ' if behind else ''}{', '.join(behind)}"
            findings.append(Finding("replicas", "warning" if behind else "ok", told))
        told = "NATS forces writes to disk every two minutes only, by default"
        advice = "set sync_interval: always, if a power loss must not take grants back"
        findings.append(Finding("disk", "note", told, advice))
        return [*findings, _encryption(client)]


class _Refused(BackendUnavailable):
    """JetStream answered with an error."""

    def __init__(self, shown: str, code: int, text: str) -> None:
        super().__init__(f"{shown}: {text} (JetStream error {code})")
        self.code = code


def _version(client: Client) -> str:
    return str(client.connected_server_version).removeprefix("<nats server v").rstrip(">")


def _encryption(client: Client) -> Finding:
    url = client.connected_url
    if client.options.get("tls") is not None or client._server_info.get("tls_required"):
        return Finding("encryption", "ok", "TLS, and the server's certificate is checked")
    if url is not None and is_here(url.hostname or ""):
        return Finding("encryption", "ok", "none needed: the server is on this machine")
    told = "none: anyone on the network path can read and change the traffic"
    return Finding("encryption", "note", told, "add tls=on to the URL if the server has TLS")


def _limits(config: Mapping[str, Any]) -> bool:
    return bool(config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0)


def _escape(key: bytes) -> str:
    """A key in the alphabet of buckets; all that it is not sure to allow becomes `=` and two digits."""
    found: bytes = re.sub(rb"[^A-Za-z0-9_-]", lambda match: b"=%02X" % match[0][0], key)
    return found.decode()


def _unescape(name: str) -> bytes:
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name.encode())


def _by_inbox(notifications: Sequence[Notification]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in notifications:
        found.setdefault(each.inbox, []).append([_escape(each.key), encode(each)])
    return found


def _notifications(data: bytes, inbox: str) -> list[Notification]:
    """The notifications in a message; none if it has another form."""
    try:
        return [
            decode_notification(fields, _unescape(key), inbox) for key, fields in json.loads(data)
        ]
    except (ValueError, TypeError, LookupError):
        return []
