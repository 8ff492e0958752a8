"""The S3 store, `s3://`: an object for each key, swapped by conditional writes.

boto3 signs and sends; it has no asyncio, so each call has a thread for itself.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3  # type: ignore[import-untyped]
from botocore import exceptions as boto  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from dibs.clock import Clock
from dibs.errors import BackendUnavailable, DibsError, Forbidden, InvalidRequest, NotConfigured
from dibs.model import Capabilities, Finding
from dibs.stores.cas.cells import (
    Cell,
    Cells,
    Change,
    Receive,
    SwapConflict,
    TooLarge,
    load_readable,
)
from dibs.stores.cas.clock import SKEW, StoreClock
from dibs.stores.cas.format import read_state, write_state
from dibs.stores.cas.store import CasStore
from dibs.stores.redact import redacted
from dibs.stores.url_options import duration, read_options, text

THREADS = 32
"""Calls under way at a time, for one event loop."""

MAX_SIZE = 1_000_000
"""Bytes of a value to which an id may be added."""

PART = 250
"""Characters of an object's name after which a folder begins."""

CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0
"""Seconds; callers may allow less."""

type Inboxes = dict[str, tuple[asyncio.AbstractEventLoop, Receive]]
"""Who subscribed in this process: an asyncio client and a blocking one, with loops of their own, may share a
store."""

OTHER_ETAG = '"00000000000000000000000000000000"'
"""No object has this one."""

REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")
"""Codes of a conditional write that did nothing: the object is another one, is being written, or is gone."""

MISCONFIGURED = (301, 400, 404, 405, 501)
"""Statuses of what no other try will change: region, bucket, or a server that lacks an operation."""

TRANSIENT = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.IncompleteReadError,
    boto.CredentialRetrievalError,
    OSError,
)
"""Errors of the network, after which a request may have been carried out."""


_OPTIONS = {"endpoint": text, "region": text, "skew": duration}


class S3Store(CasStore):
    """Leases in a bucket of S3, or of anything that has its conditional writes (R2, MinIO, SeaweedFS, …).

    | URL | |
    |---|---|
    | `s3://bucket` | objects below `dibs/`, in AWS |
    | `s3://bucket/team-a?region=eu-central-1` | objects below `team-a/` |
    | `s3://bucket?endpoint=http://127.0.0.1:9000` | another server of the S3 API |

    Options: `endpoint`, `region`, `skew` (seconds by which the servers' clocks may differ, default 10).
    Credentials and their settings are boto3's own: environment, profile, role.

    No notifications come from other processes, so waiters ask from time to time. `open` makes sure, with an
    object named `probe`, that the server refuses writes whose condition fails.
    """

    capabilities: Capabilities = Capabilities(
        scope="cluster",
        clock=False,
        durable=True,
        notifies=False,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        shown, parts = redacted(url), urlsplit(url)
        try:
            options = read_options(parts.query, _OPTIONS)
            self.skew: float = options.get("skew", SKEW)
            if not re.fullmatch(r"[\w.-]+", parts.netloc, re.ASCII) or parts.fragment:
                raise ValueError("it looks like s3://bucket/prefix?region=eu-central-1")
        except ValueError as error:
            raise NotConfigured(f"{shown}: {error}") from None
        self._bucket = parts.netloc
        self._prefix = unquote(parts.path).strip("/") or "dibs"
        self._options = options
        self._inboxes: Inboxes = {}
        super().__init__(shown, clock=clock)

    def address(self) -> tuple[str, str]:
        """The endpoint, by boto3's own settings (empty for AWS), and `bucket/prefix`.

        Raises `NotConfigured`.
        """
        try:
            unused = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
            client = self._make_client(**unused)  # else it would ask the machine for a role
        except (boto.BotoCoreError, ValueError, OSError) as error:
            raise NotConfigured(f"{self.url}: {error}") from error
        host = urlsplit(client.meta.endpoint_url).netloc.lower()
        client.close()
        is_aws = re.fullmatch(r"(.+\.)?amazonaws\.com(\.cn)?", host)
        partition = client.meta.partition
        endpoint = ("" if partition == "aws" else partition) if is_aws else host
        return endpoint, f"{self._bucket}/{self._prefix}"

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> Cells:
        make, inboxes = self._make_client, self._inboxes
        return S3Cells(self.url, self._bucket, self._prefix, make, inboxes, clock, now)

    def _make_client(self, **credentials: str) -> Any:
        """Make a client; this reads files. A try that fails is never repeated behind our back.

        A repeated write would be refused for what its first try had written.
        """
        endpoint = self._options.get("endpoint")
        config = Config(
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=THREADS,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",  # not all servers know them
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if endpoint else None,
        )
        session = boto3.session.Session(region_name=self._options.get("region"))
        region = session.region_name or ("us-east-1" if endpoint else None)
        return session.client(
            "s3", endpoint_url=endpoint, region_name=region, config=config, **credentials
        )


class S3Cells:
    """See `Cells`."""

    def __init__(
        self,
        shown: str,
        bucket: str,
        prefix: str,
        make: Callable[[], Any],
        inboxes: Inboxes,
        clock: StoreClock,
        now: Callable[[], float],
    ) -> None:
        self._shown = shown
        self._bucket = bucket
        self._prefix = prefix
        self._make = make
        self._inboxes = inboxes
        self._clock = clock
        self._now = now
        self._opening = asyncio.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._client: Any = None
        self._making: asyncio.Future[Any] | None = None
        self._deletes: bool | None = None
        """Whether the server leaves an object that is not the one to be deleted. None: not known yet."""

    # -- calls --------------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._client is None:
                self._threads = self._threads or ThreadPoolExecutor(THREADS, "dibs-s3")
                if self._making is None:  # it takes longer than some callers wait
                    self._making = asyncio.ensure_future(self._in_thread(self._make))
                try:
                    client = await asyncio.shield(self._making)
                except (boto.BotoCoreError, ValueError, OSError) as error:
                    self._making = None
                    raise NotConfigured(f"{self._shown}: {error}") from error
                await self._probe(client)
                self._client, self._making = client, None

    async def _probe(self, client: Any) -> None:
        """Raises `NotConfigured` if the server writes although a condition fails, as old ones do."""
        write = partial(self._call, "put_object", "probe", client=client, but=REFUSED, Body=b"")
        wrote = await write(IfNoneMatch="*") and await write(IfNoneMatch="*")
        if wrote or await write(IfMatch=OTHER_ETAG):
            raise NotConfigured(
                f"{self._shown}: this server ignores the conditions of writes (If-Match, If-None-Match), "
                "so nothing could be locked: upgrade it, or use another store"
            )

    async def _in_thread[T](self, work: Callable[[], T]) -> T:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            return work()
        return await future

    async def _call(
        self, name: str, key: str = "", *, client: Any = None, but: Sequence[str] = (), **said: Any
    ) -> Any:
        """Call a method of boto3's client, and return the answer; None for an error with a code in `but`."""
        if client is None and self._client is None:
            await self.open()
        method = getattr(client or self._client, name)
        if key:
            said["Key"] = f"{self._prefix}/{key}"

        def work() -> tuple[Any, float, float]:
            sent = self._now()
            try:
                answer = method(Bucket=self._bucket, **said)
                if "Body" in answer:
                    answer["Body"] = answer["Body"].read()
            except boto.ClientError as error:
                answer = error
            return answer, sent, self._now()

        try:
            answer, sent, heard = await self._in_thread(work)
        except TRANSIENT as error:
            raise BackendUnavailable(
                f"{self._shown}: {error}; check the endpoint, the network and the firewall"
            ) from error
        except boto.BotoCoreError as error:
            raise NotConfigured(
                f"{self._shown}: {error}. Credentials come from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the role of the machine, the region from region= or "
                "AWS_REGION"
            ) from error
        is_error = isinstance(answer, boto.ClientError)
        response = answer.response if is_error else answer
        date = response["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        if date:
            self._clock.note(parsedate_to_datetime(date).timestamp(), 1.0, sent, heard)
        if not is_error:
            return answer
        if response["Error"].get("Code") in but:
            return None
        raise self._failure(answer) from answer

    def _failure(self, error: Any) -> DibsError:
        text, code = f"{self._shown}: {error}", error.response["Error"].get("Code")
        status = error.response["ResponseMetadata"].get("HTTPStatusCode")
        if status in (401, 403) or code in ("ExpiredToken", "InvalidToken"):
            return Forbidden(
                f"{text}. The credentials need s3:GetObject, s3:PutObject and s3:DeleteObject on "
                f"{self._bucket}/{self._prefix}/*, and s3:ListBucket on {self._bucket}"
            )
        if code == "KeyTooLongError":
            return InvalidRequest(
                f"{text} The name is too long: S3 takes 1,024 bytes with the prefix, and each byte that is "
                "no letter, digit or usual sign counts for three"
            )
        if status in MISCONFIGURED and code != "RequestTimeout":
            return NotConfigured(f"{text}. Check the bucket, region= and endpoint=")
        return BackendUnavailable(text)

    async def close(self) -> None:
        self.part()

    def part(self) -> None:
        client, self._client, self._making = self._client, None, None
        threads, self._threads = self._threads, None
        if threads is not None:
            with suppress(RuntimeError):  # the interpreter is shutting down
                if client is not None:
                    threads.submit(client.close)
            threads.shutdown(wait=False)

    def after_fork(self) -> None:
        """Drop the client, which closes its sockets silently. The child has no copies of threads."""
        self._client = self._threads = self._making = None
        self._inboxes.clear()

    # -- cells --------------------------------------------------------------------------------------

    async def load(self, key: bytes) -> Cell:
        found = await self._call("get_object", _object(key), but=("NoSuchKey",))
        if found is None:
            return Cell(None, None)
        where = f"in the object {self._prefix}/{_object(key)} of {self._bucket}"
        return Cell(found["ETag"], read_state(found["Body"], where), where)

    async def swap(self, key: bytes, version: Any, change: Change) -> Any:
        """See `Cells`. An ETag may be the hash of the value: then the same ETag means the same book."""
        if change.state is None:
            await self._delete(key, version)
            return None
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
        value = write_state(change.state)
        if change.grows and len(value) > MAX_SIZE:
            raise TooLarge(f"{len(value)} bytes")
        found = await self._call(
            "put_object",
            _object(key),
            but=REFUSED,
            Body=value,
            ContentType="application/json",
            **condition,
        )
        if found is None:
            raise SwapConflict
        for each in change.notifications:
            subscriber = self._inboxes.get(each.inbox)
            if subscriber is not None:
                loop, receive = subscriber
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(receive, [each])
        return found["ETag"]

    async def _delete(self, key: bytes, version: str) -> None:
        """Delete a cell, if the server can be trusted to delete no other; else it stays."""
        if self._deletes is None:
            at = "probe-of-deletion"
            await self._call("put_object", at, Body=b"")
            try:
                done = await self._call("delete_object", at, but=REFUSED[:1], IfMatch=OTHER_ETAG)
            except (NotConfigured, Forbidden):
                done = True
            self._deletes = done is None
        if not self._deletes:
            raise SwapConflict
        if await self._call("delete_object", _object(key), but=REFUSED, IfMatch=version) is None:
            raise SwapConflict

    async def page(
        self, prefix: bytes, cursor: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, Cell]], bytes | None]:
        base = f"{self._prefix}/"
        after = {} if cursor is None else {"StartAfter": base + _object(cursor)}
        found = await self._call(
            "list_objects_v2", Prefix=base + _object(prefix), MaxKeys=limit, **after
        )
        start = len(base + _object(b""))
        keys = [_key(each["Key"][start:]) for each in found.get("Contents", ())]
        return await load_readable(self, keys), keys[-1] if found["IsTruncated"] else None

    async def subscribe(self, inbox: str, receive: Receive) -> Callable[[], None]:
        """Notifications come from this process only; for all others, waiters ask from time to time."""
        self._inboxes[inbox] = (asyncio.get_running_loop(), receive)

        def end() -> None:
            self._inboxes.pop(inbox, None)

        return end

    async def examine(self) -> Sequence[Finding]:
        """Whether conditions of writes are obeyed, and rules that delete objects."""
        await self.open()
        found = [Finding("conditions", "ok", "the server refuses writes whose condition fails")]
        try:
            rules = await self._call(
                "get_bucket_lifecycle_configuration", but=("NoSuchLifecycleConfiguration",)
            )
        except DibsError:
            told = "these credentials may not read the bucket's lifecycle rules"
            return [*found, Finding("lifecycle", "note", told, "see that none expires the objects")]
        told = f"a lifecycle rule deletes objects of {self._bucket}"
        if rules is not None and any(
            rule["Status"] == "Enabled" and "Expiration" in rule for rule in rules["Rules"]
        ):
            advice = f"see that it leaves out {self._prefix}/: leases and tokens lie there"
            return [*found, Finding("lifecycle", "warning", told, advice)]
        return [*found, Finding("lifecycle", "ok", "no rule deletes objects")]


def _object(key: bytes) -> str:
    """The name of a key's object. Names have the order of the keys.

    Servers that keep objects in files take parts of 255 bytes. The `+` keeps a folder from having the name of
    an object.
    """
    name = re.sub(rb"[\x00-!./\[\\~-\xff]", _escape, key).decode()
    return "keys/" + re.sub(f"(.{{{PART}}})(?=.)", r"\1+/", name)


def _escape(match: re.Match[bytes]) -> bytes:
    """A byte as the first of those beside it that are escaped, which keeps the order, and two digits."""
    byte = match[0][0]
    first = b"!" if byte <= 0x21 else b"." if byte <= 0x2F else b"[" if byte <= 0x5C else b"~"
    return b"%c%02X" % (first, byte)


def _key(name: str) -> bytes:
    escaped = name.replace("+/", "").encode()
    return re.sub(rb"[!.\[~]([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), escaped)
