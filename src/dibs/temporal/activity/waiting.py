"""Waiting for a slot over several attempts, which keep one position in the queue."""

import os
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Self

from temporalio.activity import Info

from dibs.primitives.acquire import Acquiring
from dibs.primitives.ask import Ask
from dibs.primitives.watching import OnWait
from dibs.runtime.port import Runtime

MARK = "dibs-waiting"
"""What the heartbeat details call the position that the next attempt continues with."""


class Position:
    """An activity's position in the queue of its lock.

    The lease id is a hash of the run id, the activity id, the store's URL and a random salt, so that
    nobody can guess it who reads only the store, or only Temporal. An attempt that has only waited leaves
    the salt to the next one. An attempt that has held the lock never does, as its successor must not
    share its lease.
    """

    def __init__(self, info: Info, url: str, salt: str, since: float) -> None:
        self._run = info.workflow_run_id or info.activity_run_id or ""
        self._activity = info.activity_id
        self._url = url
        self._salt = salt
        self.since = since
        """When the first of these attempts started, by the server's clock, in seconds since 1970."""

    @classmethod
    def of(cls, info: Info, url: str) -> Self:
        """The position that the attempt before has left, else a new one."""
        for each in info.heartbeat_details:
            if _is_ours(each) and each.get("attempt") == info.attempt:
                return cls(info, url, str(each[MARK]), float(each["since"]))
        return cls(info, url, _salt(), info.started_time.timestamp())

    @property
    def lease_id(self) -> str:
        """The id of the lease that is waited for."""
        parts = (self._salt, self._run, self._activity, self._url)
        return urlsafe_b64encode(sha256(repr(parts).encode()).digest()[:18]).decode()

    def begin_anew(self) -> None:
        """The id has ended, so the wait begins again at the end of the queue."""
        self._salt = _salt()

    def left_to(self, attempt: int) -> dict[str, Any]:
        """For the heartbeat details: that attempt continues with it."""
        return {MARK: self._salt, "since": self.since, "attempt": attempt}


def without_position(details: Sequence[Any]) -> list[Any]:
    """The heartbeat details that are the activity's own."""
    return [each for each in details if not _is_ours(each)]


def _is_ours(detail: Any) -> bool:
    return isinstance(detail, dict) and MARK in detail


def _salt() -> str:
    return urlsafe_b64encode(os.urandom(18)).decode()


class KeptAcquiring(Acquiring):
    """An acquire that can end without giving up its position."""

    __slots__ = ("_position",)

    def __init__(self, rt: Runtime, ask: Ask, on_wait: OnWait | None, position: Position) -> None:
        super().__init__(rt, ask, on_wait, position.lease_id)
        self._position = position

    def keep_position(self) -> None:
        """From now on its end leaves the id in the queue, or holding what was just granted to it."""
        self._over = True

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._position.begin_anew()
        self._id = self._position.lease_id
