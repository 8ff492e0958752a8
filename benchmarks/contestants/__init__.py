"""Who is measured. Each contestant is a few lines over the library as its manual shows it.

A *cycle* is one acquire and one release of a key that nobody else wants. A contestant makes, for a
place, a function from a key to `run(n)`, which does n cycles, awaited or blocking.
"""

from importlib import import_module

from benchmarks.contestants.kinds import Contestant

_OF = {
    "dibs": "ours",
    "bare ledger": "bare",
    "bare SQLite": "bare",
    "bare Redis": "redis_peers",
    "bare Postgres": "postgres_peers",
    "asyncio.Lock": "locals",
    "grelmicro redis": "redis_peers",
    "grelmicro postgres": "postgres_peers",
    "grelmicro kubernetes": "kubernetes_peers",
    "grelmicro": "grelmicros",
    "filelock": "files",
    "portalocker": "files",
    "fasteners": "files",
    "redis": "redis_peers",
    "pottery": "redis_peers",
    "aioredlock": "redis_peers",
    "python-redis-lock": "redis_peers",
    "tooz redis": "redis_peers",
    "tooz postgres": "postgres_peers",
    "advisory lock": "postgres_peers",
    "bare etcd": "etcd_peers",
    "aetcd": "etcd_peers",
    "etcd-client-py": "etcd_peers",
    "Go's concurrency": "etcd_peers",
    "Go's re": "go_peers",
    "Go's rueidis": "go_peers",
    "bare PUT": "kubernetes_peers",
    "plain HTTP": "service",
    "Rust SDK": "service",
    "bare framework": "service",
}
"""Which module has a contestant, by how its name begins: the longest that fits."""


def contestant(name: str) -> Contestant:
    """By name; nothing else than its own library is imported."""
    module = _OF[max((start for start in _OF if name.startswith(start)), key=len)]
    found: dict[str, Contestant] = import_module(f"benchmarks.contestants.{module}").CYCLES
    return found[name]
