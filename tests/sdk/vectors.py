"""`python -m tests.sdk.vectors`: write what the runtime computes for renewals, for SDKs in other languages.

Each case is a real lease of `dibs.locks.lease` under a clock that is moved by hand. After each step it has
the times and the state of the lease.
"""

import json
import logging
from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from dibs.core.timing import margin, renew_after, trusted
from dibs.locks.lease import LeaseBase
from dibs.locks.requests import Grant, HoldOptions
from dibs.model import Lost, Renew, Renewed
from dibs.runtime.port import TimedReply
from dibs.stores.port import time_limit

FILE = Path(__file__).parents[2] / "sdk/rust/tests/vectors/timing.json"
KEY = b"lock:a"
TTLS = (0.1, 0.25, 0.5, 1.0, 1.7, 3.0, 5.0, 10.0, 30.0, 61.5, 300.0, 3600.0, 86400.0)
CALL_TIMEOUT = 10.0
CASES = 60
STEPS = 14

type Json = dict[str, Any]


class Case:
    """A lease, and the steps that it took."""

    def __init__(self, ttl: float, remaining: float, *, inbox: bool, auto_renew: bool) -> None:
        self.now = 1000.0
        keeper = SimpleNamespace(watch=lambda *_: None, unwatch=lambda _: None)
        rt: Any = SimpleNamespace(
            now=lambda: self.now, inbox="x" if inbox else "", keeper=keeper, is_over=False
        )
        options = HoldOptions(ttl, "me", 1, exclusive=False, auto_renew=auto_renew)
        deadline = self.now + remaining
        grant = Grant("id", 7, (), self.now, deadline, None, doubtful=False)
        self.lease = LeaseBase(rt, KEY, options, grant, object())
        self.ttl = ttl
        self.told: Json = {
            "ttl": ttl,
            "sent": self.now,
            "deadline": deadline,
            "inbox": inbox,
            "auto_renew": auto_renew,
            "first_renew_at": self.lease._renew_at,
            "steps": [],
        }

    def step(self, what: str, seconds: float, **more: Any) -> None:
        self.now += seconds
        found = getattr(self, f"_{what}")(**more)
        lease = self.lease
        renew_at = None if lease._renew_at == inf else lease._renew_at
        self.told["steps"].append(
            {"do": what, "now": self.now, **more, **found}
            | {"deadline": lease._deadline, "renew_at": renew_at, "end": lease._end}
        )

    def _check(self) -> Json:
        care = self.lease._check(self.now)
        return {"renew": care.renew, "again_at": care.again_at}

    def _renewed(self, ago: float, ttl: float) -> Json:
        sent = self.now - ago
        self.lease._renewed(TimedReply(Renewed(ttl), sent))
        return {"sent": sent}

    def _failed(self) -> Json:
        self.lease._not_renewed(OSError("no answer"))
        return {}

    def _lost(self, reason: Any) -> Json:
        self.lease._renewed(TimedReply(Lost(reason), self.now))
        return {}

    def _suspect(self) -> Json:
        return {"renew": self.lease._suspect_revocation()}


def drawn(draw: Random) -> Json:
    """A lease with a random life."""
    ttl = draw.choice(TTLS)
    remaining = draw.choice((1.0, 1.0, draw.random())) * trusted(ttl)
    auto_renew = draw.random() < 0.9
    case = Case(ttl, remaining, inbox=draw.random() < 0.7, auto_renew=auto_renew)
    for _ in range(STEPS):
        case.step("check", draw.choices((0.01, 0.1, 0.2, 0.34, 0.6), (2, 6, 6, 3, 1))[0] * ttl)
        last = case.told["steps"][-1]
        if last["end"] is not None:
            break
        if auto_renew and draw.random() < 0.15:
            case.step("suspect", 0.01 * ttl)
        if not last["renew"]:
            continue
        kind = draw.choices(("renewed", "failed", "lost"), (6, 4, 1))[0]
        ago = draw.choice((0.001, 0.05, 0.2)) * ttl
        more: Json = {}
        if kind == "renewed":
            more = {"ago": ago, "ttl": ttl * draw.choice((1.0, 1.0, 0.8))}
        elif kind == "lost":
            more = {"reason": draw.choice(("expired", "revoked"))}
        case.step(kind, ago, **more)
    case.lease._finish("released")
    return case.told


def durations() -> Iterator[Json]:
    for ttl in TTLS:
        limit = time_limit(Renew(KEY, "id", ttl), CALL_TIMEOUT)
        yield {
            "ttl": ttl,
            "margin": margin(ttl),
            "trusted": trusted(ttl),
            "renew_after": renew_after(ttl),
            "call_limit": limit,
        }


def vectors() -> str:
    """All of it, as JSON."""
    log = logging.getLogger("dibs")
    before, log.disabled = log.disabled, True  # each loss is logged
    try:
        draw = Random(7)
        cases = [drawn(draw) for _ in range(CASES)]
    finally:
        log.disabled = before
    told: Json = {"call_timeout": CALL_TIMEOUT, "durations": list(durations())}
    lines = [json.dumps(each) for each in cases]
    told["cases"] = "CASES"
    return json.dumps(told, indent=1).replace('"CASES"', "[\n" + ",\n".join(lines) + "\n]") + "\n"


if __name__ == "__main__":
    FILE.write_text(vectors())
