"""A leader election's settings: its deadlines, and what must hold between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dibs.config import Duration, safe_lock_delay, safe_ttl, seconds, whole
from dibs.core.timing import trusted
from dibs.errors import UnsafeTiming
from dibs.settings import configured_together

JITTER = 1.2
"""A pause between two tries is `retry` times 1 to this, so that candidates don't come all at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderConfig:
    """How a leader is elected and stays one; give it to `LeaderElection.from_config`."""

    ttl: Duration = 15.0
    """How long the store keeps a leader that is not heard of: what its crash costs."""
    renew_deadline: Duration | None = None
    """A leader that could not renew for so long steps down, before the store lets go; None: 2/3 of `ttl`."""
    retry: Duration | None = None
    """How often a leader renews, and how long a candidate pauses; None: 1/5 of `renew_deadline`."""
    priority: int = 0
    """Among candidates that wait, higher comes first."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""
    lock_delay: Duration = 0.0
    """After a leader that was not heard of any more nobody leads for so long."""

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

    What is set for all locks (`DIBS_TTL`) is not for leaders, whose durations go together.
    """
    return configured_together(
        LeaderConfig, READERS, "leader", name, given, env_prefix=env_prefix, env_load=env_load
    )
