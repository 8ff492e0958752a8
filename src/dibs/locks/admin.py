"""What can be done to a key without holding it."""

from collections.abc import Callable
from dataclasses import replace

from dibs.core.names import PROBE, split_key
from dibs.core.timing import MIN_TTL, trusted
from dibs.errors import LeaseLost
from dibs.locks.lease import LeaseBase, unpack_handle
from dibs.locks.messages import key_shown, span, unexpected
from dibs.model import (
    Failed,
    Finding,
    Granted,
    Inspect,
    Renew,
    Renewed,
    Revoke,
    Revoked,
    Status,
)
from dibs.runtime.port import Runtime


async def status(rt: Runtime, key: bytes) -> Status:
    """Who holds a key and who waits for it."""
    reply = (await rt.call(Inspect(key))).reply
    if isinstance(reply, Status):
        own, found = rt.keeper.held(key), reply
        return replace(found, mine=tuple(h for h in found.holders if h.lease in own))
    raise unexpected(reply, key)


async def revoke(rt: Runtime, key: bytes, reason: str, now: bool) -> int:
    """Refuse further renewals to all holders; return how many there were."""
    reply = (await rt.call(Revoke(key, None, reason, now))).reply
    if isinstance(reply, Revoked):
        return reply.count
    raise unexpected(reply, key)


async def attach[LeaseT: LeaseBase](
    rt: Runtime, handle: str, lease_type: Callable[[str], type[LeaseT]]
) -> LeaseT:
    """Take over a detached lease, if the store still has it; its type follows from its kind."""
    key, terms, grant = unpack_handle(handle)
    answer = await rt.call(Renew(key, grant.id, terms.ttl))
    reply = answer.reply
    if isinstance(reply, Failed):
        raise unexpected(reply, key)
    if not isinstance(reply, Renewed | Granted):
        raise LeaseLost(
            f"the detached lease on {key_shown(key)} (token {grant.token}) has ended", key=key
        )
    grant = grant._replace(since=answer.sent, deadline=answer.sent + trusted(reply.ttl))
    kind, _ = split_key(key)
    return lease_type(kind)(rt, key, terms, grant, rt.me())


PROBES = 20
"""So many round trips are measured when a store is examined."""


async def examine(rt: Runtime) -> list[Finding]:
    """How far away the store is, what it promises, and what it has to say about itself."""
    if not rt.is_ready:
        await rt.ready()
    await status(rt, PROBE)  # connects, where that hasn't been done
    times = sorted([await _round_trip(rt) for _ in range(PROBES)])
    found = await rt.examine()
    broken = [finding for finding in found if finding.about == "promises"]
    theirs = [finding for finding in found if finding.about == "latency"]  # it knows better
    least_ttl = max((finding.least_ttl for finding in found), default=0.0)
    return [
        *(theirs or [_latency(times[PROBES // 2], times[-1], least_ttl)]),
        _promises(rt.capabilities.names(), broken),
        *(finding for finding in found if finding not in (*broken, *theirs)),
    ]


def _promises(words: frozenset[str], broken: list[Finding]) -> Finding:
    """What the store promises, and what its backend found that its settings make of it."""
    told = f"{', '.join(sorted(words))} (allowed in `require=`)"
    for finding in broken:
        return replace(finding, told=f"{told}; {finding.told}")
    return Finding("promises", "ok", told)


async def _round_trip(rt: Runtime) -> float:
    begun = rt.now()
    await rt.call(Inspect(PROBE))
    return rt.now() - begun


def _latency(usual: float, worst: float, least_ttl: float) -> Finding:
    """A renewal has a third of the ttl, and should have time for several tries in it.

    `least_ttl`: below that the store grants none.
    """
    told = (
        f"a round trip takes {usual * 1e3:.2f} ms, {worst * 1e3:.1f} ms at worst of {PROBES}: "
        f"use no ttl below {span(max(20 * worst, MIN_TTL, least_ttl))}"
    )
    if worst > 0.5:
        return Finding(
            "latency", "warning", told, "a store nearer by would keep leases through hiccups"
        )
    return Finding("latency", "ok", told)


def scan_prefix(kind: str, prefix: str | bytes) -> bytes:
    """The beginning of the keys of that kind whose names begin with `prefix`."""
    raw = prefix.encode() if isinstance(prefix, str) else prefix
    return kind.encode() + b":" + raw
