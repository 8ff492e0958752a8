"""The service as anything that speaks HTTP uses it: no library, no keeper, retries under an id of one's own.

A client that gives its resources the methods that turns call, so that both kinds take the same turns.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlsplit

import httpx2

from dibs.core.timing import trusted
from dibs.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from dibs.testing.history import HistoryEvent
from dibs.testing.recorder import Recorder
from tests.server.world import TRUST, lock

WAITS = (0.1, 2.0)
"""The shortest and the longest `wait=` of one request, in seconds."""
PATIENCE = 0.5
"""Seconds that an answer may take beyond what was to be waited for: less than a fault may last."""
IN_LINE, TRYING = 0.75, 1.0
"""The part of turns that wait in line; all others try for so many seconds, and give up."""
WITH_ID = 0.75
"""The part of turns under an id of their own: whoever has none can't ask again for the same lease."""
RENEWED_BELOW = 0.6
"""A lease that has less of its ttl left is renewed when its holder looks."""
MANY_TRIES = 4
"""So often a release is tried."""

STILL_HELD = "still held"
"""An event's `resource`: a release was acknowledged, and a later look found the hold that it was for."""

type Answer = tuple[int, dict[str, Any]]


class RawClient:
    """One program's; its threads share a name and a key."""

    def __init__(self, url: str, recorder: Recorder, stopping: Callable[[], bool]) -> None:
        parts = urlsplit(url)
        headers = {"Authorization": f"Bearer {parts.username}"}
        self._http = httpx2.Client(
            base_url=f"http://{parts.hostname}:{parts.port}", headers=headers, verify=TRUST
        )
        self.recorder = recorder
        self.name = f"raw-{os.getpid()}"
        self.stopping = stopping

    def ask(self, method: str, path: str, query: dict[str, Any], patience: float) -> Answer:
        """Raises `BackendUnavailable` when nobody knows what became of it."""
        try:
            answer = self._http.request(method, path, params=query, timeout=patience)
        except httpx2.HTTPError as error:
            raise BackendUnavailable(str(error)) from error
        return answer.status_code, answer.json() if answer.content else {}

    def lock(self, name: str, **how: Any) -> "RawLock":
        return RawLock(self, name, **how)


class RawLock:
    def __init__(self, client: RawClient, name: str, *, ttl: float, wait: float, **_: Any) -> None:
        self.client = client
        self.key = f"lock:{name}".encode()
        self.path = lock(name)
        self.ttl = ttl
        self._wait = wait

    def acquire(self) -> "RawLease":
        """Raises `AcquireTimeout`, and `BackendUnavailable` where it can't be asked for again."""
        own, waits = random.random() < WITH_ID, random.random() < IN_LINE
        lease_id = token_urlsafe(16) if own else ""
        until = time.monotonic() + (self._wait if waits else TRYING)
        while time.monotonic() < until and not self.client.stopping():
            try:
                lease = self._try(lease_id, random.uniform(*WAITS) if waits else 0.0)
            except BackendUnavailable:
                if not own:
                    raise
            except LeaseLost:  # that id has ended
                lease_id = token_urlsafe(16) if own else ""
            else:
                if lease is not None:
                    return lease
            time.sleep(random.uniform(0.01, 0.05))
        if own:
            self.release(lease_id)
        raise AcquireTimeout("waited in vain", key=self.key)

    def _try(self, lease_id: str, wait: float) -> "RawLease | None":
        """Raises `BackendUnavailable`, and `LeaseLost` where that id has ended."""
        query = {"ttl": self.ttl, "client-id": self.client.name, "wait": round(wait, 3)}
        query |= {"id": lease_id} if lease_id else {}
        sent = self.client.recorder.now()
        status, told = self.client.ask("POST", self.path, query, wait + PATIENCE)
        if status == 200:
            until = sent + told["remaining"] - (self.ttl - trusted(self.ttl))
            lease = RawLease(self, told["id"], told["sequencer"], tuple(told["slots"]), until)
            if wait:  # it may have been granted long after it was asked for
                lease.renew()
            return lease
        if status == 410:
            raise LeaseLost("this id has ended")
        assert status in (409, 429, 503), f"{status} {told}"
        return None

    def release(self, lease_id: str) -> bool:
        """Whether it was acknowledged. Raises `BackendUnavailable` if nobody knows."""
        for _ in range(MANY_TRIES):
            with suppress(BackendUnavailable):
                status, told = self.client.ask("DELETE", self.path, {"id": lease_id}, PATIENCE)
                if status in (200, 410):
                    return status == 200
                assert status in (429, 503), f"{status} {told}"
                time.sleep(0.1)
        raise BackendUnavailable("nobody knows whether it is released")

    def look_for(self, token: int) -> None:
        """Its release was acknowledged: nobody may hold under that token any more."""
        at = self.client.recorder.now()
        with suppress(BackendUnavailable):
            status, told = self.client.ask("GET", self.path, {}, PATIENCE)
            if status == 200 and any(each["token"] == token for each in told["holders"]):
                event = HistoryEvent(at, "asked", self.key.decode(), token=token)
                found = event._replace(process=os.getpid(), resource=STILL_HELD)
                self.client.recorder.record(found)


class RawLease:
    """What was granted, and until when it may be believed in."""

    def __init__(
        self, of: RawLock, lease_id: str, token: int, slots: tuple[int, ...], until: float
    ) -> None:
        self.key, self.token, self.slots = of.key, token, slots
        self._of, self._id, self._until = of, lease_id, until

    @property
    def remaining(self) -> float:
        return max(self._until - self._of.client.recorder.now(), 0.0)

    def ensure(self) -> None:
        """Renew it when it is time. Raises `LeaseLost`."""
        if self.remaining < RENEWED_BELOW * self._of.ttl:
            with suppress(BackendUnavailable):  # what is left of it still stands
                self.renew()
        if not self.remaining:
            raise LeaseLost(key=self.key)

    def renew(self) -> None:
        of = self._of
        query = {"id": self._id, "ttl": of.ttl}
        sent = of.client.recorder.now()
        status, _ = of.client.ask("PATCH", of.path, query, max(self.remaining, 0.2))
        if status == 200:
            self._until = max(self._until, sent + trusted(of.ttl))
        elif status in (409, 410):
            self._until = 0.0
            raise LeaseLost(key=self.key)

    def release(self) -> None:
        if self._of.release(self._id):
            self._of.look_for(self.token)
