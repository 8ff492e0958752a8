"""What this table has to show for itself: bars that a release must clear, from the same run."""

from typing import NamedTuple

from benchmarks import costs, cycles, dripping, fifo, handoff, leases, queues
from benchmarks.results import Results, multiple


class Verdict(NamedTuple):
    """One bar, and whether it was cleared; None where that was not measured."""

    bar: str
    value: float | None
    passed: bool | None


class Bar(NamedTuple):
    """How many times `over` the figure `of` must be, at least or at most."""

    told: str
    section: str
    setting: str
    unit: str
    of: str
    over: str
    least: float | None = None
    most: float | None = None


_SQLITE, _GREL = "dibs sqlite", "grelmicro sqlite"
_ONE, _MANY = "disk, 1 task", "disk, 64 tasks"
_PAIR, _LEDGER = "bare SQLite pair", "bare ledger, twice"
_CYCLES, _UNIT = cycles.SECTION, cycles.UNIT

NONE = (
    ("turns out of order", fifo.SECTION, fifo.SETTING, _SQLITE, fifo.UNIT),
    ("turns before the last had ended", handoff.SECTION, "overlaps", _SQLITE, "overlaps"),
    ("left behind by cancelled acquires", costs.SECTION, costs.CANCELLING, _SQLITE, "left behind"),
    ("of very many leases, lost", leases.SECTION, leases.SETTING, _SQLITE, "lost"),
    (
        "of leases under dripping connections, lost",
        *(dripping.SECTION, dripping.SETTING, dripping.DRIPPING, dripping.LOST),
    ),
)
"""What must not have happened once."""

LIMITS = (
    (
        "`dibs version`",
        *(costs.SECTION, costs.STARTING, "dibs version", "ms of CPU"),
        80.0,
    ),
    (
        "`dibs run x -- true`",
        *(costs.SECTION, costs.STARTING, "dibs run x -- true", "ms of CPU"),
        120.0,
    ),
    (
        "`Lock.from_config` a request",
        *(costs.SECTION, costs.CONSTRUCTING, "dibs.Lock.from_config", "µs"),
        10.0,
    ),
    (
        "p99 of renewals under dripping connections, a tenth of the ttl",
        *(dripping.SECTION, dripping.SETTING, dripping.DRIPPING, dripping.P99),
        1000 * dripping.TTL / 10,
    ),
    *(
        (
            f"Kubernetes, {tasks}",
            _CYCLES,
            f"Kubernetes, {tasks}",
            "dibs kubernetes",
            cycles.CPU,
            450.0,
        )
        for tasks in ("1 task", "16 tasks")
    ),
)
"""Small costs, and how much each may be."""

RATES = (
    (
        "the service by batches, two commands a cycle",
        *(_CYCLES, "service, 64 tasks", "dibs service", _UNIT),
        5000.0,
    ),
)
"""What has to come to so much at least, whatever the machine."""

BARS = (
    Bar("SQLite, 1 task, against grelmicro", _CYCLES, _ONE, _UNIT, _SQLITE, _GREL, least=6),
    Bar("SQLite, 1 task, against a bare pair", _CYCLES, _ONE, _UNIT, _SQLITE, _PAIR, least=0.5),
    Bar("SQLite, 64 tasks, against grelmicro", _CYCLES, _MANY, _UNIT, _SQLITE, _GREL, least=7),
    Bar(
        "SQLite, 4 processes × 64 tasks, against grelmicro",
        *(_CYCLES, "disk, 4 processes × 64 tasks", _UNIT, _SQLITE, _GREL),
        least=3,
    ),
    Bar(
        "memory, 1 task, `async with`: time against the bare ledger, twice",
        *(_CYCLES, "memory, 1 task", _UNIT, _LEDGER, "dibs memory, async with"),
        most=1.5,
    ),
    *(
        Bar(
            f"{server}, {tasks}, against {over}",
            _CYCLES,
            f"{server}, {tasks}",
            _UNIT,
            of,
            over,
            least,
        )
        for server, tasks, of, over, least in (
            ("Redis", "64 tasks", "dibs redis", "Go's redsync", 1.5),
            ("Redis", "64 tasks", "dibs redis", "redis.asyncio.Lock", 8),
            ("Redis", "64 tasks", "dibs redis", "aioredlock", 6),
            ("Redis", "64 tasks", "dibs redis", "grelmicro redis", 6),
            ("Redis", "1 task", "dibs redis", "redis.asyncio.Lock", 1.4),
            ("Redis", "1 task", "dibs redis, sync", "redis.Lock, sync", 1.3),
            ("Postgres", "64 tasks", "dibs postgres", "grelmicro postgres", 6),
            ("Postgres", "1 task", "dibs postgres", "grelmicro postgres", 1.5),
            ("etcd", "1 task", "dibs etcd", "aetcd", 1.3),
            ("etcd", "1 task", "dibs etcd", "etcd-client-py", 1.3),
            ("Kubernetes", "1 task", "dibs kubernetes", "grelmicro kubernetes", 1.5),
            ("Kubernetes", "16 tasks", "dibs kubernetes", "grelmicro kubernetes", 1.5),
        )
    ),
    Bar(
        "the service, 64 tasks: two plain requests, against the bare framework's",
        *(_CYCLES, "service, 64 tasks", _UNIT),
        *("plain HTTP to the service", "bare framework pair"),
        least=0.4,
    ),
    Bar(
        "Redis, a semaphore of 64 in 64 tasks, against 64 locks",
        *(_CYCLES, "all primitives on redis, 64 tasks", _UNIT),
        *("dibs redis, semaphore of 64", "dibs redis, lock"),
        least=0.5,
    ),
    Bar(
        "Redis, a semaphore's cycle with 1,024 waiters against 64",
        *(queues.SECTION, "dibs redis", queues.UNIT, queues.MANY, queues.FEW),
        most=1.5,
    ),
    Bar(
        "hand-off on Redis, p50 against a bare grant and publish",
        *("hand-off on Redis, 2 × 4 waiters", "µs, p50", "µs, p50"),
        *("dibs redis", handoff.REDIS_BASELINE),
        most=1.5,
    ),
    Bar(
        "hand-off on Postgres, p50 against a bare grant and notify",
        *("hand-off on Postgres, 2 × 4 waiters", "µs, p50", "µs, p50"),
        *("dibs postgres", "bare grant and notify"),
        most=1.3,
    ),
    Bar(
        "hand-off on etcd, p50 against one write",
        *("hand-off on etcd, 2 × 4 waiters", "µs, p50", "µs, p50"),
        *("dibs etcd", handoff.ETCD_BASELINE),
        most=2.5,
    ),
    Bar(
        "hand-off on Kubernetes, p50 against one PUT",
        *("hand-off on Kubernetes, 2 × 4 waiters", "µs, p50", "µs, p50"),
        *("dibs kubernetes", handoff.KUBERNETES_BASELINE),
        most=2.5,
    ),
    Bar(
        "hand-off, p50 against a bare transaction and a datagram",
        *(handoff.SECTION, "µs, p50", "µs, p50", _SQLITE, "bare SQLite, then a datagram"),
        most=3,
    ),
    Bar(
        "hand-off, p99 against a 0.1 s poll",
        *(handoff.SECTION, "µs, p99", "µs, p99", _SQLITE, "0.1 s poll of SQLite"),
        most=1 / 20,
    ),
)


def judge(results: Results) -> list[Verdict]:
    """Every bar, measured or not."""
    verdicts = [_judge_bar(results, bar) for bar in BARS]
    for told, section, setting, name, unit in NONE:
        row = results.find(section, setting, name, unit)
        count = None if row is None else sum(row.values)
        verdicts.append(Verdict(f"{told}: none", count, None if count is None else count == 0))
    for told, section, setting, name, unit, most in LIMITS:
        row = results.find(section, setting, name, unit)
        spent = None if row is None else row.median
        fast = None if spent is None else spent < most
        verdicts.append(Verdict(f"{told}: < {most:g} {unit}", spent, fast))
    for told, section, setting, name, unit, least in RATES:
        row = results.find(section, setting, name, unit)
        rate = None if row is None else row.median
        enough = None if rate is None else rate >= least
        verdicts.append(Verdict(f"{told}: ≥ {least:g} {unit}", rate, enough))
    return verdicts


def _judge_bar(results: Results, bar: Bar) -> Verdict:
    mine = results.find(bar.section, bar.setting, bar.of, bar.unit)
    other = results.find(bar.section, bar.setting, bar.over, bar.unit)
    limit = f"≥ {bar.least:g}" if bar.least is not None else f"≤ {bar.most:g}"
    told = f"{bar.told}: {limit} ×"
    if mine is None or other is None:
        return Verdict(told, None, None)
    value = multiple(mine, other)
    passed = (bar.least is None or value >= bar.least) and (bar.most is None or value <= bar.most)
    return Verdict(told, value, passed)


def as_text(verdicts: list[Verdict]) -> str:
    """A line for each bar."""
    words = {True: "pass", False: "FAIL", None: "not measured"}
    lines = ["", "acceptance"]
    for verdict in verdicts:
        value = "–" if verdict.value is None else f"{verdict.value:.3g}"
        lines.append(f"  {verdict.bar:<64} {value:>8}  {words[verdict.passed]}")
    return "\n".join(lines)
