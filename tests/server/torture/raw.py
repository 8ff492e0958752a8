"""The service as anything that speaks HTTP uses it: no library, no keeper, retries under an id of one's own.

A client that gives its resources the methods that turns call, so that both kinds take the same turns.
"""

import http.client
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from dibs.core.timing import trusted as believable
from dibs.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from dibs.testing.recorder import Recorder
from tests.server.torture.judging import still_held
from tests.server.world import b64

WAITS = (0.1, 2.0)
"""The shortest and the longest `wait=` of one request, in seconds."""
PATIENCE = 0.5
"""Seconds that an answer may take beyond what was to be waited for: less than a fault may last."""
IN_LINE, BY_TRYING = 0.75, 20
"""The part of turns that wait in line; all others try so often, and give up."""
WITH_ID = 0.75
"""The part of turns under an id of their own: whoever has none can't ask again for the same lease."""
RENEWED_BELOW = 0.6
"""A lease that has less of its ttl left is renewed when its holder looks."""
LOOKS = 0.2
"""How often somebody looks whether a release that was acknowledged was done."""
MANY_TRIES = 4
"""So often a release is tried."""

type Answer = tuple[int, dict[str, Any]]


class RawClient:
    """One program's; its threads share a name and a key, each has a connection of its own."""

    def __init__(self, url: str, recorder: Recorder, stopping: Callable[[], bool]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        cafile = parse_qs(parts.query).get("cafile", [None])[0]
        self._where = parts.hostname, parts.port
        self._tls = cafile and ssl.create_default_context(cafile=cafile)
        self._headers = {"Authorization": f"Bearer {parts.username}"}
        self._own = threading.local()
        self.recorder = recorder
        self.name = f"raw-{os.getpid()}"
        self.stopping = stopping

    @property
    def draw(self) -> random.Random:
        if not hasattr(self._own, "draw"):
            self._own.draw = random.Random(token_urlsafe())
        found: random.Random = self._own.draw
        return found

    def ask(self, method: str, path: str, query: dict[str, Any], patience: float) -> Answer:
        """Raises `BackendUnavailable` when nobody knows what became of it."""
        line: http.client.HTTPConnection | None = getattr(self._own, "line", None)
        self._own.line = None
        if line is None and self._tls:
            line = http.client.HTTPSConnection(*self._where, context=self._tls)
        elif line is None:
            line = http.client.HTTPConnection(*self._where)
        try:
            line.timeout = patience
            if line.sock is not None:
                line.sock.settimeout(patience)
            line.request(method, f"{path}?{urlencode(query)}", headers=self._headers)
            response = line.getresponse()
            body = response.read()
            if "content-length" not in response.headers:  # cut in its head, which goes unnoticed
                raise http.client.IncompleteRead(body)
        except (OSError, http.client.HTTPException) as error:
            line.close()
            raise BackendUnavailable(str(error)) from error
        except BaseException:
            line.close()
            raise
        if not response.will_close:
            self._own.line = line
        return response.status, json.loads(body) if body else {}

    def lock(self, name: str, **how: Any) -> "RawResource":
        return RawResource(self, "lock", name, {}, how)

    def semaphore(self, name: str, capacity: int, **how: Any) -> "RawResource":
        return RawResource(self, "semaphore", name, {"capacity": capacity}, how)

    def rwlock(self, name: str, **how: Any) -> "RawRWLock":
        return RawRWLock(self, name, how)


class RawRWLock:
    def __init__(self, client: RawClient, name: str, how: dict[str, Any]) -> None:
        self.key = b"rwlock:" + name.encode()
        self.read, self.write = (
            partial(RawResource, client, "rwlock", name, {"mode": mode}, how)
            for mode in ("read", "write")
        )


class RawResource:
    """Something to acquire, and how."""

    def __init__(
        self, client: RawClient, kind: str, name: str, query: dict[str, Any], how: dict[str, Any]
    ) -> None:
        self.client, self.kind = client, kind
        self.key = f"{kind}:{name}".encode()
        self.path = f"/v1/locks/{b64(name)}"
        self.ttl: float = how["ttl"]
        self.mode: str = query.get("mode", "")
        self._query = {"ttl": self.ttl, "client-id": client.name, **query}
        self._wait: float = how["wait"]

    def acquire(self, units: int = 1) -> "RawLease":
        """Raises `AcquireTimeout`, and `BackendUnavailable` where it can't be asked for again."""
        draw = self.client.draw
        query = self._query | ({"units": units} if "capacity" in self._query else {})
        own = draw.random() < WITH_ID
        waits = draw.random() < IN_LINE
        until, tries = time.monotonic() + self._wait, 0
        lease_id = token_urlsafe(16) if own else ""
        while time.monotonic() < until and not self.client.stopping():
            tries += 1
            if not waits and tries > BY_TRYING:
                break
            wait = draw.uniform(*WAITS) if waits else 0.0
            try:
                lease = self._try(query, lease_id, wait)
            except BackendUnavailable:
                if not own:
                    raise
                time.sleep(0.02)
                continue
            except LeaseLost:  # that id has ended
                lease_id = token_urlsafe(16) if own else ""
                continue
            if lease is not None:
                return lease
            if not waits:
                time.sleep(draw.uniform(0.01, 0.1))
        if own:
            self.release(lease_id)
        raise AcquireTimeout("waited in vain", key=self.key)

    def _try(self, query: dict[str, Any], lease_id: str, wait: float) -> "RawLease | None":
        """Raises `BackendUnavailable`, and `LeaseLost` where that id has ended."""
        own = {"id": lease_id} if lease_id else {}
        waits = {"wait": round(wait, 3)} if wait else {}
        sent = self.client.recorder.now()
        status, told = self.client.ask("POST", self.path, query | own | waits, wait + PATIENCE)
        if status == 200:
            until = sent + told["remaining"] - (self.ttl - believable(self.ttl))
            lease = RawLease(self, told["id"], told["sequencer"], tuple(told["slots"]), until)
            if wait:  # it may have been granted long after it was asked for
                lease.renew()
            return lease
        if status == 410:
            raise LeaseLost("this id has ended")
        if status in (409, 429, 503):
            return None
        raise AssertionError(f"{status} {told}")

    def release(self, lease_id: str) -> bool:
        """Whether it was acknowledged. Raises `BackendUnavailable` if nobody knows."""
        query = {"id": lease_id, "kind": self.kind}
        for last in range(MANY_TRIES):
            try:
                status, told = self.client.ask("DELETE", self.path, query, PATIENCE)
            except BackendUnavailable:
                if last == MANY_TRIES - 1:
                    raise
                continue
            if status in (200, 410):
                return status == 200
            assert status in (429, 503), f"{status} {told}"
            time.sleep(0.1)
        raise BackendUnavailable("it is overloaded")

    def look_for(self, token: int) -> None:
        """Its release was acknowledged: nobody may hold under that token any more."""
        at = self.client.recorder.now()
        try:
            status, told = self.client.ask("GET", self.path, {"kind": self.kind}, PATIENCE)
        except BackendUnavailable:
            return
        if status == 200 and any(each["token"] == token for each in told["holders"]):
            self.client.recorder.record(still_held(at, self.key, token, os.getpid()))


class RawLease:
    """What was granted, and until when it may be believed in."""

    def __init__(
        self, of: RawResource, lease_id: str, token: int, slots: tuple[int, ...], until: float
    ) -> None:
        self.key, self.token, self.slots, self.mode = of.key, token, slots, of.mode
        self._of, self._id, self._until = of, lease_id, until

    @property
    def remaining(self) -> float:
        return max(self._until - self._of.client.recorder.now(), 0.0)

    def ensure(self) -> None:
        """Renew it when it is time. Raises `LeaseLost`."""
        if self.remaining < RENEWED_BELOW * self._of.ttl:
            try:
                self.renew()
            except BackendUnavailable:
                pass  # what is left of it still stands
        if not self.remaining:
            raise LeaseLost(key=self.key)

    def renew(self) -> None:
        """Raises `LeaseLost`, and `BackendUnavailable`."""
        of = self._of
        query = {"id": self._id, "ttl": of.ttl, "kind": of.kind}
        sent = of.client.recorder.now()
        status, _ = of.client.ask("PATCH", of.path, query, max(self.remaining, 0.2))
        if status == 200:
            self._until = max(self._until, sent + believable(of.ttl))
        elif status in (409, 410):
            self._until = 0.0
            raise LeaseLost(key=self.key)

    def release(self) -> None:
        """Raises `BackendUnavailable`."""
        if self._of.release(self._id) and self._of.client.draw.random() < LOOKS:
            self._of.look_for(self.token)
