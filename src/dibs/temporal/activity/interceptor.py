"""The interceptor that takes the locks of activities that need one."""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio.activity import Info
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
)

from dibs.config import Duration, Unset, optional_seconds
from dibs.errors import DibsError
from dibs.temporal.activity.attempt import HeartbeatClock, LockAttempt, LockTerms
from dibs.temporal.activity.decorator import (
    LockBackend,
    LockNeed,
    checked_backend,
    need_of,
    refuse_nowhere,
)
from dibs.temporal.activity.lock import is_held_for
from dibs.temporal.activity.semaphore import LockStores, without_position

WAIT_IN_SLOT = 5.0
"""Seconds that a waiting attempt keeps its activity slot before it ends, if attempts are not limited."""

VARIABLES = ("DIBS_APPLICATION", "APPLICATION_NAME")


class LockInterceptor(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Takes the lock of each activity that is decorated with `needs_lock` before it runs.

    Give it to a client (its workers have it, too) or to a worker; `DibsPlugin` does. The lock is taken
    where the activity runs, and leaves nothing in a workflow's history, so you can add or remove it at any
    time. `application` (None: DIBS_APPLICATION, else APPLICATION_NAME, else none) goes before each
    name, and `backend` is the store of all that name none. An attempt that waits ends after
    `wait_in_slot` seconds (None: only with its own timeout). It is retried a second later, and keeps its
    position in the queue. Where the retry policy limits attempts, it waits for as long as it can.
    """

    def __init__(
        self,
        *,
        application: str | None = None,
        backend: LockBackend = None,
        wait_in_slot: Duration | None = WAIT_IN_SLOT,
    ) -> None:
        if not isinstance(application, str | None):
            raise TypeError(f"application is {application!r}: give a text")
        self._application = application
        self._backend = checked_backend(backend)
        self._wait_in_slot = optional_seconds(wait_in_slot, "wait_in_slot")
        self._stores = LockStores()

    def intercept_activity(  # the names are Temporal's
        self,
        next: ActivityInboundInterceptor,  # noqa: A002
    ) -> ActivityInboundInterceptor:
        """For Temporal."""
        return _Inbound(next, self)

    def check(self, activities: Iterable[Any]) -> None:
        """Raises `NotConfigured` if one of these needs a lock and no store is configured for it."""
        if self._backend is None:
            for activity in activities:
                need = need_of(activity)
                if need is not None and need.backend is None:
                    refuse_nowhere(need.activity)

    def terms(self, need: LockNeed) -> LockTerms:
        """The options of the activity, and the interceptor's for the rest."""
        in_slot = need.wait_in_slot
        return LockTerms(
            need,
            self.application if need.application is None else need.application,
            self._stores,
            self._backend if need.backend is None else need.backend,
            self._wait_in_slot if isinstance(in_slot, Unset) else in_slot,
        )

    @property
    def application(self) -> str:
        """The first part of each name."""
        if self._application is not None:
            return self._application
        return next((found for each in VARIABLES if (found := os.environ.get(each))), "")

    async def close(self) -> None:
        """Close the stores that were opened by URL. No activity may wait here any more."""
        await self._stores.close()


class _Inbound(ActivityInboundInterceptor):
    """For one attempt."""

    def __init__(self, inner: ActivityInboundInterceptor, locks: LockInterceptor) -> None:
        super().__init__(inner)
        self._locks = locks
        self._outbound: _Outbound

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound)
        super().init(self._outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        need = need_of(input.fn)
        if need is None or _is_held(need, input):  # another interceptor like this has it
            return await super().execute_activity(input)
        outbound = self._outbound
        attempt = LockAttempt(
            self._locks.terms(need), outbound.own_info, outbound.info(), outbound.heartbeats
        )
        return await attempt.run(input, super().execute_activity)


def _is_held(need: LockNeed, asked: ExecuteActivityInput) -> bool:
    try:
        return is_held_for(need.activity, need.name_for(asked.fn, asked.args))
    except (
        DibsError,
        TypeError,
        ValueError,
    ):  # arguments that make no name: the attempt reports it
        return False


class _Outbound(ActivityOutboundInterceptor):
    """Hides our heartbeat detail from the activity, and notes the heartbeats."""

    def __init__(self, inner: ActivityOutboundInterceptor) -> None:
        super().__init__(inner)
        self.heartbeats = HeartbeatClock()

    @cached_property
    def own_info(self) -> Info:
        """The info as the server sent it."""
        return super().info()

    @cached_property
    def _shown(self) -> Info:
        info = self.own_info
        return replace(info, heartbeat_details=without_position(info.heartbeat_details))

    def info(self) -> Info:
        return self._shown

    def heartbeat(self, *details: Any) -> None:
        self.heartbeats.beat()
        super().heartbeat(*details)
