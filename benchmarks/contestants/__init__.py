"""Who is measured. Each contestant is a few lines over the library as its manual shows it.

A *cycle* is one acquire and one release of a key that nobody else wants. A contestant makes, for a
place, a function from a key to `run(n)`, which does n cycles, awaited or blocking.
"""

from importlib import import_module

from benchmarks.contestants.kinds import Contestant

_MODULES = {
    "leasehold": "leaseholds",
    "bare": "bare",
    "asyncio.Lock": "locals",
    "grelmicro": "grelmicros",
    "filelock": "files",
    "filelock,": "files",
    "portalocker": "files",
    "fasteners": "files",
}


def contestant(name: str) -> Contestant:
    """By name; nothing else than its own library is imported."""
    module = _MODULES[name.partition(" ")[0]]
    found: dict[str, Contestant] = import_module(f"benchmarks.contestants.{module}").CYCLES
    return found[name]
