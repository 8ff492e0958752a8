"""A term of leadership: a lease that is renewed often, and trusted until the election's own deadline."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, NoReturn

from dibs.config import Duration, safe_lock_delay, safe_ttl, seconds, whole
from dibs.core.timing import trusted
from dibs.errors import BackendUnavailable, UnsafeTiming
from dibs.locks.lease import LeaseBase, LeaseRules
from dibs.locks.messages import format_key
from dibs.locks.requests import Grant, HoldOptions
from dibs.model import Failed
from dibs.process import generation
from dibs.runtime.port import Runtime
from dibs.settings import configured_together

JITTER = 1.2
"""A pause between two tries is `retry` times 1 to this, so that candidates do not try all at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderConfig:
    """How a leader is elected and stays one; give it to `LeaderElection.from_config`."""

    ttl: Duration = 15.0
    """How long the store keeps a leader that does not renew: the time that its crash costs."""
    renew_deadline: Duration | None = None
    """How long a leader goes on without a renewal, less than `ttl`; None: 2/3 of `ttl`."""
    retry: Duration | None = None
    """Time between two renewals, and of a candidate's pause; None: 1/5 of `renew_deadline`."""
    priority: int = 0
    """Among waiting candidates, the highest comes first."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""
    lock_delay: Duration = 0.0
    """How long nobody leads after the lease of a leader has expired."""

    def __post_init__(self) -> None:
        ttl = safe_ttl(self.ttl)
        given, retry = self.renew_deadline, self.retry
        deadline = ttl * 2 / 3 if given is None else seconds(given, "renew_deadline")
        retry = deadline / 5 if retry is None else seconds(retry, "retry")
        _check(ttl, deadline, retry)
        object.__setattr__(self, "lock_delay", safe_lock_delay(self.lock_delay))
        for field, value in (("ttl", ttl), ("renew_deadline", deadline), ("retry", retry)):
            object.__setattr__(self, field, value)


def _check(ttl: float, deadline: float, retry: float) -> None:
    if not deadline < ttl:
        raise UnsafeTiming(
            f"renew_deadline is {deadline:g} s and ttl {ttl:g} s: a leader must step down before the "
            "store lets another one lead, so give a longer ttl= or a shorter renew_deadline="
        )
    if not retry > 0:
        raise UnsafeTiming("retry is 0: a leader would do nothing but renew")
    believed = min(deadline, trusted(ttl))
    if not JITTER * retry < believed:
        raise UnsafeTiming(
            f"retry is {retry:g} s, and a leader steps down {believed:g} s after its last renewal: "
            f"{JITTER:g} times retry must be less, or one lost message would end its term"
        )


READERS: Mapping[str, Callable[[str], Any]] = {
    "ttl": str,
    "renew_deadline": str,
    "retry": str,
    "priority": whole,
    "note": str,
    "label": str,
    "lock_delay": str,
}


def leader_configured(
    name: str | bytes, given: Mapping[str, Any], *, env_prefix: str | None, env_load: bool
) -> LeaderConfig:
    """Settings by keyword, `DIBS_LEADER__<NAME>__<SETTING>`, `[leader.<name>]` of the file, default.

    Settings for all locks (`DIBS_TTL`) do not apply to leaders, whose durations depend on each other.
    """
    return configured_together(
        LeaderConfig, READERS, "leader", name, given, env_prefix=env_prefix, env_load=env_load
    )


log = logging.getLogger("dibs")

type Callback = Callable[[Any], object]


def leader_rules(
    config: LeaderConfig, on_started: Callback | None, on_stopped: Callback | None
) -> LeaseRules:
    """How terms are held: renewed often, and trusted until the election's deadline or the store's."""
    # LeaderConfig has made them seconds
    every, deadline = config.retry, config.renew_deadline
    return LeaseRules(
        renew_every=every,  # type: ignore[arg-type]
        trust_for=deadline,  # type: ignore[arg-type]
        on_started=on_started,
        on_stopped=on_stopped,
    )


class TermBase(LeaseBase):
    """What terms of asyncio and threads share; made by elections only."""

    __slots__ = ("_begun", "number")

    number: int
    """Which of this candidate's terms it is, from 1; over all candidates, terms rise by `token`."""

    def __init__(
        self, rt: Runtime, key: bytes, options: HoldOptions, grant: Grant, me: object
    ) -> None:
        self.number = 0
        self._begun = False
        """`on_started` was called, and `on_stopped` was not."""
        super().__init__(rt, key, options, grant, me)

    # -- its beginning and its end ------------------------------------------------------------------

    async def _tell_started(self) -> None:
        """Call `on_started`."""
        self._begun = True
        await self._tell(self._rules.on_started, "on_started")

    async def _stop(self) -> None:
        """Call `on_stopped`, once, if `on_started` was called."""
        if self._begun and generation.number == self._generation:
            self._begun = False
            await self._tell(self._rules.on_stopped, "on_stopped")

    async def _tell(self, callback: Callback | None, name: str) -> None:
        if callback is None:
            return
        try:
            told = callback(self)
            if isawaitable(told):
                await told
        except Exception:
            log.exception("%s of %s failed", name, format_key(self.key))

    def _resign(self) -> bool:
        """End it by the leader's own will. Its body is interrupted, and hands it over at its end."""
        if not self._finish("resigned"):
            return False
        self._interrupt()
        self._set_watchers()
        log.info("%s: the leader with token %d resigns", format_key(self.key), self.token)
        return True

    async def _leave(self, exc: BaseException | None, ours: bool | None = None) -> None:
        """The body has ended. Nobody else leads before `on_stopped` has returned."""
        ours = self._exit_block(exc)
        try:
            await self._stop()
        finally:
            await super()._leave(exc, ours)

    async def _hand_over(self) -> None:
        """Release it after its end here, so that another candidate can lead at once."""
        if self._given_up or generation.number != self._generation:
            return
        self._given_up = True
        try:
            answer = await self._rt.call(self._release_command())
        except BackendUnavailable:
            self._abandon()
        except BaseException:
            self._abandon()
            raise
        else:
            if isinstance(answer.reply, Failed):
                self._abandon()

    # -- what it does not support -------------------------------------------------------------------

    async def _renew(self, ttl: Duration | None) -> None:
        if ttl is not None:
            raise TypeError("a term has its election's ttl: write renew()")
        await super()._renew(None)

    def detach(self) -> NoReturn:
        """Never works: a candidate leads by itself. Raises `TypeError`."""
        raise TypeError("a term can't be handed to another process: resign, and let it be elected")
