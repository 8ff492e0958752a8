"""A leader election's settings: its deadlines, and what must hold between them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from leasehold.config import UNSET, Duration, own_prefix, safe_ttl, seconds
from leasehold.core.timing import trusted
from leasehold.errors import UnsafeTiming

JITTER = 1.2
"""A pause between two tries is `retry` times 1 to this, so that candidates don't come all at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderConfig:
    """How a leader is elected and stays one; give it to `LeaderElection.from_config`."""

    ttl: Duration = 15.0
    """How long the store keeps a leader that is not heard of: what its crash costs."""
    renew_deadline: Duration = 10.0
    """A leader that could not renew for so long steps down by itself, before the store lets go."""
    retry: Duration = 2.0
    """How often a leader renews, and how long a candidate pauses before it tries again."""
    priority: int = 0
    """Among candidates that wait, higher comes first."""
    note: str = ""
    """Why; for people."""
    label: str = ""
    """What to add to the owner's name; for people."""

    def __post_init__(self) -> None:
        ttl = safe_ttl(self.ttl)
        deadline, retry = (
            seconds(self.renew_deadline, "renew_deadline"),
            seconds(self.retry, "retry"),
        )
        _check(ttl, deadline, retry)
        for field, value in (("ttl", ttl), ("renew_deadline", deadline), ("retry", retry)):
            object.__setattr__(self, field, value)


def _check(ttl: float, deadline: float, retry: float) -> None:
    if not deadline < ttl:
        raise UnsafeTiming(
            f"renew_deadline is {deadline:g} s and ttl {ttl:g} s: a leader must step down before the "
            "store lets another one lead, so give a ttl that is longer"
        )
    if not retry > 0:
        raise UnsafeTiming("retry is 0: a leader would do nothing but renew")
    believed = min(deadline, trusted(ttl))
    if not JITTER * retry < believed:
        raise UnsafeTiming(
            f"retry is {retry:g} s, and a leader steps down {believed:g} s after its last renewal: "
            f"{JITTER:g} times retry must be less, or one lost message would end its term"
        )


_READERS: Mapping[str, Any] = {"priority": int}


def leader_configured(
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> LeaderConfig:
    """Settings by keyword, then from `LEASEHOLD_LEADER__<NAME>__<SETTING>`, then defaults.

    What is set for all locks (`LEASEHOLD_TTL`) is not for leaders, whose durations go together.
    """
    values = {key: value for key, value in given.items() if value is not UNSET}
    prefix = own_prefix("leader", name, env_prefix) if env_load else None
    found = []
    for field in fields(LeaderConfig) if prefix else ():
        variable = f"{prefix}{field.name.upper()}"
        if field.name not in values and variable in environ:
            values[field.name] = _READERS.get(field.name, str)(environ[variable])
            found.append(variable)
    try:
        return LeaderConfig(**values)
    except ValueError as error:
        if not found:
            raise
        raise type(error)(f"with {', '.join(found)} set: {error}") from error
