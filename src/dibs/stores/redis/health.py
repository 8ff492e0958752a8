"""What to know about a server before one relies on it: asked of the server itself."""

import time
from collections.abc import Mapping
from typing import Any

from dibs.model import Finding
from dibs.stores.redis.connection import HiredisError, Link, ReplyError, pack
from dibs.stores.redis.errors import broken

QUESTIONS = (
    (b"TIME",),
    (b"INFO", b"everything"),
    (b"CONFIG", b"GET", b"maxmemory-policy"),
    (b"CONFIG", b"GET", b"appendfsync"),
    (b"CONFIG", b"GET", b"min-replicas-to-write"),
)

NEARLY = 0.8
"""So much of the memory in use is worth a warning."""


async def examine(link: Link, holdoff: float, limit: float) -> list[Finding]:
    """What a server, or one of a Cluster's, says of itself in one round trip; then `link` is closed.

    What this user may not ask is said so. `holdoff` is what the URL asks for. The answers
    must come within `limit` seconds.
    """
    try:
        before = time.time()
        answers = await link.ask(b"".join(map(pack, QUESTIONS)), len(QUESTIONS), limit)
        after = time.time()
    except (OSError, HiredisError) as error:
        raise broken(error, link.endpoint) from error
    finally:
        link.close()
    clock, info, policy, fsync, replicas = answers
    facts = facts_of(info)
    found = [] if isinstance(clock, ReplyError) else [_clock(clock, before, after)]
    if not facts:
        told = "this user has no permission for INFO, so most checks were skipped"
        return [*found, Finding("server", "note", told)]
    version = facts.get("valkey_version") or facts.get("redis_version", "unknown")
    kind = "Valkey" if "valkey_version" in facts else "Redis"
    evicts = setting_of(policy) or facts.get("maxmemory_policy")
    found += [
        Finding("server", "ok", f"{kind} {version}, mode {facts.get('redis_mode', 'unknown')}"),
        *_persistence(facts, setting_of(fsync), holdoff),
        _memory(evicts, facts),
        _eviction(evicts, facts),
        _replication(facts, setting_of(replicas)),
    ]
    return found


def facts_of(info: Any) -> Mapping[str, str]:
    """What `INFO` tells; nothing where that is forbidden."""
    if isinstance(info, ReplyError):
        return {}
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else str(info)
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def setting_of(answer: Any) -> str | None:
    """The value that `CONFIG GET` gave; None where that is forbidden, as on hosted servers."""
    if isinstance(answer, ReplyError) or len(answer) < 2:
        return None
    return bytes(answer[1]).decode()


def _clock(answer: Any, before: float, after: float) -> Finding:
    theirs = int(answer[0]) + int(answer[1]) / 1e6
    apart = theirs - (before + after) / 2
    told = f"the server's clock is {abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} this host's"
    if abs(apart) > 60:
        advice = (
            "leases are safe, because only durations count; but times of grants will look wrong"
        )
        return Finding("clock", "note", told, advice)
    return Finding("clock", "ok", told)


def _persistence(facts: Mapping[str, str], fsync: str | None, holdoff: float) -> list[Finding]:
    if facts.get("aof_enabled") != "1":
        return _without_persistence(holdoff, is_cluster=facts.get("redis_mode") == "cluster")
    told = f"the append-only file is on (appendfsync {fsync or 'unknown'})"
    if fsync == "always":
        return [Finding("persistence", "ok", told)]
    if fsync == "no":
        advice = "set `appendfsync everysec` or `always`"
        told += ": a power cut loses what the system had not written, some 30 seconds"
    else:
        advice = "set `appendfsync always` if that matters"
        told += ": a power cut may lose the last second or two, and exclusion with them"
    return [Finding("persistence", "warning", told, advice)]


def _without_persistence(holdoff: float, *, is_cluster: bool) -> list[Finding]:
    """A restart ends leases that their holders still trust, against the promises of the store."""
    promise = "This Redis does not persist data, so a restart loses all leases"
    told = "the append-only file is off: a restart loses all leases"
    if holdoff:
        told += f", and nothing is granted for {holdoff:g} s after it (restart_holdoff)"
        advice = "all clients need the same restart_holdoff=, and no ttl longer than it"
        return [
            Finding("promises", "ok", f"{promise}; restart_holdoff keeps exclusion"),
            Finding("persistence", "ok", told, advice),
        ]
    told += ". After a restart a second holder can get a lock that is still in use."
    advice = "set `appendonly yes`"
    if not is_cluster:
        advice += ", or let grants wait after a restart: ?restart_holdoff=60s, with the longest ttl in use"
    return [
        Finding("promises", "warning", f"{promise}. See persistence below."),
        Finding("persistence", "problem", told, advice),
    ]


def _memory(policy: str | None, facts: Mapping[str, str]) -> Finding:
    """What Redis itself compares before it refuses a write: without the buffers of its replicas."""
    most = int(facts.get("maxmemory", "0"))
    used = int(facts.get("used_memory", "0")) - int(facts.get("mem_not_counted_for_evict", "0"))
    if not most:
        return Finding(
            "memory", "ok", f"{_megabytes(used)} are in use, and maxmemory sets no bound"
        )
    told = f"{_megabytes(used)} of {_megabytes(most)} (maxmemory) are in use"
    if used >= most and policy == "noeviction":
        told += ": it takes no writes, so nothing can be granted"
        return Finding("memory", "problem", told, "raise `maxmemory`, or remove other data")
    if used > NEARLY * most:
        advice = "raise `maxmemory`: a server that is full grants nothing, or evicts leases"
        return Finding("memory", "warning", told, advice)
    return Finding("memory", "ok", told)


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MB"


def _eviction(policy: str | None, facts: Mapping[str, str]) -> Finding:
    if policy is None:
        return Finding(
            "eviction", "note", "the server does not report its eviction policy to this user"
        )
    if policy == "noeviction" or facts.get("maxmemory") == "0":
        return Finding("eviction", "ok", f"nothing is evicted (maxmemory-policy {policy})")
    return Finding(
        "eviction",
        "problem",
        f"maxmemory-policy is {policy}: Redis can delete a lease that is held",
        "set `maxmemory-policy noeviction`, or use another server for leases",
    )


def _replication(facts: Mapping[str, str], least: str | None) -> Finding:
    role, replicas = facts.get("role", "unknown"), int(facts.get("connected_slaves", "0"))
    if role != "master":
        return Finding(
            "replication", "problem", f"it is a {role}", "name its master, or use ?sentinel=SERVICE"
        )
    if not replicas:
        return Finding("replication", "ok", "no replicas, so no failover")
    told = f"{replicas} replicas follow asynchronously"
    if least not in (None, "0"):
        told += f", and it refuses writes with fewer than {least} of them"
    return Finding(
        "replication",
        "warning",
        told + ": a failover can forget a lease that was just granted, and grant it again",
        "put the fencing token into what you write: no lease in Redis survives a failover for sure",
    )
