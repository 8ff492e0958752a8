"""The semaphore behind an activity's lock: its store, its times, and its queue position over attempts."""

import logging
import os
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, Self

from temporalio.activity import Info

import dibs
from dibs.config import UNSET, LockConfig, seconds
from dibs.core.names import key_of
from dibs.core.timing import DRIFT, margin
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.requests import AcquireRequest
from dibs.locks.waiting import OnWait
from dibs.runtime.port import Runtime
from dibs.settings import configured
from dibs.temporal.activity.decorator import LockBackend, LockNeed, refuse_nowhere

log: logging.Logger = logging.getLogger("dibs")

# -- the position in the queue --------------------------------------------------------------------------

SILENT = 2.0
"""Seconds without an answer after which a store counts as away."""

MARK = "dibs-waiting"
"""Key in the heartbeat details for the position that the next attempt continues with."""


class QueuePosition:
    """An activity's position in the queue of its lock.

    The lease id is a hash of the run id, the activity id, the store's URL and a random salt, so that nobody
    can guess it who reads only the store, or only Temporal. An attempt that has only waited leaves the salt
    to the next one. An attempt that has held the lock never does, because its successor must not share its
    lease.
    """

    def __init__(self, info: Info, url: str, salt: str, since: float) -> None:
        self._run = info.workflow_run_id or info.activity_run_id or ""
        self._activity = info.activity_id
        self._url = url
        self._salt = salt
        self.since: float = since
        """When the first of these attempts started, by the server's clock, in seconds since 1970."""

    @classmethod
    def of(cls, info: Info, url: str) -> Self:
        """The position that the previous attempt has left, else a new one."""
        for each in info.heartbeat_details:
            if _is_ours(each) and each.get("attempt") == info.attempt:
                return cls(info, url, str(each[MARK]), float(each["since"]))
        return cls(info, url, _salt(), info.started_time.timestamp())

    @property
    def lease_id(self) -> str:
        """The id of the lease that it waits for."""
        parts = (self._salt, self._run, self._activity, self._url)
        return urlsafe_b64encode(sha256(repr(parts).encode()).digest()[:18]).decode()

    def next_id(self) -> str:
        """The id has ended. Return another one, with which the wait begins at the end of the queue."""
        self._salt = _salt()
        return self.lease_id

    def left_to(self, attempt: int) -> dict[str, Any]:
        """Heartbeat detail from which that attempt continues."""
        return {MARK: self._salt, "since": self.since, "attempt": attempt}


def without_position(details: Sequence[Any]) -> list[Any]:
    """The heartbeat details that are the activity's own."""
    return [each for each in details if not _is_ours(each)]


def _is_ours(detail: Any) -> bool:
    return isinstance(detail, dict) and MARK in detail


def _salt() -> str:
    return urlsafe_b64encode(os.urandom(18)).decode()


class ActivitySemaphore(dibs.Semaphore):
    """A semaphore that acquires for one queue position, with an owner in Temporal's terms."""

    owner: str
    position: QueuePosition
    _pending: AcquireAttempt | None = None

    def _attempt(
        self, rt: Runtime, request: AcquireRequest, on_wait: OnWait | None
    ) -> AcquireAttempt:
        position = self.position
        self._pending = AcquireAttempt(
            rt, request, on_wait, position.lease_id, next_id=position.next_id
        )
        return self._pending

    def outage(self, waited: float) -> str:
        """Why the store has not answered the pending acquire after `waited` seconds; empty if it has."""
        pending = self._pending
        if pending is None:
            return ""
        if pending.trouble is not None:
            return str(pending.trouble)
        is_silent = pending.last_reply is None and waited >= SILENT
        return f"no answer within {waited:.0f} s" if is_silent else ""

    def keep_position(self) -> None:
        """Keep the position if the pending acquire is cancelled."""
        if self._pending is not None:
            self._pending.keep_position()

    def _describe_here(self) -> Any:
        request, options = super()._describe_here()
        self._prepared = (
            request._replace(owner=self.owner),
            options._replace(owner=self.owner),
        )
        return self._prepared


def semaphore_for(
    need: LockNeed,
    lock_name: str | bytes,
    info: Info,
    application: str,
    client: dibs.Client,
) -> ActivitySemaphore:
    """The semaphore for one attempt of an activity. Raises `InvalidName` for a name that is too long."""
    name = _full_name(application, lock_name)
    longest = longest_hold(times_of(info))
    given = {
        "ttl": UNSET if need.ttl is None else need.ttl,
        "priority": need.priority,
        "note": f"{info.activity_type} of {info.workflow_id or 'no workflow'}",
        "max_hold": longest,
        "reentrant": False,
    }
    config = configured(LockConfig, "semaphore", name, given)
    if not need.auto_renew and longest is not None:
        config = replace(config, ttl=whole(longest), auto_renew=False)
    else:
        config = replace(config, ttl=ttl_for(longest, seconds(config.ttl)))
    semaphore = ActivitySemaphore.from_config(name, need.capacity, config, client=client)
    semaphore.owner = owner_of(info, application)
    return semaphore


def _full_name(application: str, name: str | bytes) -> str | bytes:
    """The name with the application in front, so that applications do not share locks.

    Raises `InvalidName` if it is too long.
    """
    full: str | bytes = name
    if application:
        full = (
            f"{application}:{name}" if isinstance(name, str) else application.encode() + b":" + name
        )
    key_of("semaphore", full)
    return full


def owner_of(info: Info, application: str) -> str:
    """`{application}:{run id}:{activity id}`."""
    run = info.workflow_run_id or info.activity_run_id or ""
    return ":".join(each for each in (application, run, info.activity_id) if each)


# -- times ------------------------------------------------------------------------------------------------

SHORTEST = 1.0
"""Seconds of the shortest lease: timeouts of less make no sense of one."""

GRACE = 1.0
"""Seconds that the lease may last longer than the attempt, at least."""


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Timeouts of an attempt, in seconds, counted from its beginning."""

    left: float | None
    """Until the server gives up on the attempt."""
    heartbeat: float | None
    """Between heartbeats, at most."""
    total: float | None = None
    """Until the server gives up on the activity."""

    @property
    def to_wait(self) -> float | None:
        """How long a wait for the lock may take, so that its failure is still reported. None: no limit."""
        return None if self.total is None else _less_a_little(self.total)

    @property
    def to_wait_now(self) -> float | None:
        """The same within this attempt."""
        if self.left is None or self.left == self.total:
            return self.left
        return _less_a_little(self.left)


def times_of(info: Info) -> AttemptTimes:
    """The timeouts of an attempt, by the server's clock alone."""
    total = _seconds(info.schedule_to_close_timeout)
    if total is not None:
        total = max(total - (info.started_time - info.scheduled_time).total_seconds(), 0.0)
    ends = (_seconds(info.start_to_close_timeout), total)
    left = min((each for each in ends if each is not None), default=None)
    return AttemptTimes(left, _seconds(info.heartbeat_timeout), total)


def longest_hold(times: AttemptTimes) -> float | None:
    """Seconds that the lease may be held at most. None if the server sets no end."""
    return None if times.left is None else times.left + max(DRIFT * times.left, GRACE)


def ttl_for(longest: float | None, wanted: float) -> float:
    """The wanted ttl, or less if the whole activity takes less."""
    return wanted if longest is None else min(wanted, whole(longest))


def whole(longest: float) -> float:
    """A ttl that its holder can rely on for this many seconds without a renewal."""
    # trusted(ttl) is ttl less its margin, which is a part of it, or a constant for short ones
    ttl = max(longest / (1 - 0.1 - DRIFT), longest + margin(0.0) + DRIFT * longest)
    return max(ttl, SHORTEST)


def _less_a_little(time: float) -> float:
    return time - min(max(time / 10, 0.5), time / 2)


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


# -- stores -----------------------------------------------------------------------------------------------


class LockStores:
    """The stores that the activities of a worker use, each opened once."""

    def __init__(self) -> None:
        self._by_url: dict[str, dibs.Client] = {}
        self._away: set[LockBackend] = set()

    def client(self, backend: LockBackend) -> dibs.Client:
        """A client for a URL, a client of either side, the name of a store, or None: the default store."""
        if backend is None:
            refuse_nowhere("an activity")
            return dibs.connect()
        if not isinstance(backend, str):
            return dibs.Client(backend.session)
        if "://" not in backend:
            return dibs.Client.named(backend)
        found = self._by_url.get(backend)
        if found is None:
            found = self._by_url[backend] = dibs.connect(backend)
        return found

    def saw(self, backend: LockBackend, outage: str) -> None:
        """Log an outage of a store once, until it answers again (`outage` is empty)."""
        if not outage:
            self._away.discard(backend)
        elif backend not in self._away:
            self._away.add(backend)
            log.warning("activities wait for their locks, because their store is away: %s", outage)

    async def close(self) -> None:
        """Disconnect from the stores that were opened by URL."""
        clients, self._by_url = list(self._by_url.values()), {}
        for client in clients:
            await client.close()
