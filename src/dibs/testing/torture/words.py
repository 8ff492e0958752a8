"""A verdict in plain words: what was tried, what was found, what it means, what was not tried."""

from collections.abc import Iterator, Sequence

from dibs.testing.checker import Violation
from dibs.testing.torture.plan import PRIMITIVES
from dibs.testing.torture.turns import CAPACITY
from dibs.testing.torture.verdict import KILL, PAUSES, Verdict, pause_name, spread

FEW = 3
"""So many violations are told in full."""

_MEANING = {
    "overlap": "more held it at once than may",
    "slot": "two held the same slot at once, or one had not a slot for each unit",
    "token": "fencing tokens did not rise, so they can't tell an old holder from a new one",
    "too soon": "a task was started again before its min_hold was over",
    "stale write": "a resource that compares tokens took a write from an old holder",
    "starved": "it was free, somebody waited, and nobody got it in time",
}


_NAME = {
    "lock": "lock",
    "semaphore": "semaphore",
    "rwlock": "readers-writer lock",
    "tasklock": "task lock",
    "leader": "leader election",
    "allof": "set of locks",
}
_PLURAL = {each: f"{name}s" for each, name in _NAME.items()} | {"allof": "sets of locks"}


def told(verdict: Verdict) -> Iterator[str]:
    """The verdict's lines."""
    yield _headline(verdict)
    yield ""
    yield from _tried(verdict)
    yield ""
    yield from _found(verdict)
    yield ""
    yield from _meaning(verdict)
    yield ""
    yield from _not_tried(verdict)


def _headline(verdict: Verdict) -> str:
    match verdict.outcome:
        case "violation":
            return f"VIOLATED: {verdict.url} broke {_count(verdict.violations, 'promise')}."
        case "inconclusive":
            return f"NOTHING FOUND, AND NOTHING SHOWN for {verdict.url}: " + "; ".join(
                verdict.doubts
            )
        case "clean":
            return f"NO VIOLATION FOUND in {verdict.url}."


# ---- what was tried -----------------------------------------------------------------------------


def _tried(verdict: Verdict) -> Iterator[str]:
    early = ", ended early" if verdict.ended_early else ""
    yield f"Tried, in {verdict.seconds:.0f} s{early} (seed {verdict.seed}):"
    each = f", {verdict.tasks} in each" if verdict.tasks > 1 else ""
    yield (
        f"  {verdict.processes} processes on this machine ({verdict.threads} with threads, "
        f"{verdict.processes - verdict.threads} with asyncio{each}), ttl {verdict.ttl:g} s,"
    )
    resources = ", ".join(_resources(what, many) for what, many in verdict.resources.items())
    yield f"  on {resources},"
    yield f"  named {verdict.prefix}*"
    yield f"  {verdict.cycles:,} cycles: acquire, check, write, release"
    yield f"  {verdict.faults.total():,} faults, of which {verdict.struck:,} struck a holder:"
    yield f"    kill -9: {_faults(verdict, KILL)}"
    for ttls in PAUSES:
        yield f"    SIGSTOP for {ttls:g} x ttl: {_faults(verdict, pause_name(ttls))}"
    if verdict.lapses or verdict.outages:
        yield (
            f"  besides, the store was away or slow at {verdict.lapses:,} looks (two a second), "
            f"and {verdict.outages:,} calls were given up"
        )


def _resources(primitive: str, many: int) -> str:
    of = f" of {CAPACITY}" if primitive == "semaphore" else ""
    return f"{many} {_NAME[primitive] if many == 1 else _PLURAL[primitive]}{of}"


def _faults(verdict: Verdict, kind: str) -> str:
    return f"{verdict.faults[kind]:,}, of which {verdict.hit[kind]:,} struck a holder"


# ---- what was found -----------------------------------------------------------------------------


def _found(verdict: Verdict) -> Iterator[str]:
    yield "Found:"
    broken = {violation.rule for violation in verdict.violations}
    yield from _by_primitive(verdict)
    if not broken & {"overlap", "slot", "too soon"}:
        yield "  exclusion: nobody held what another held, no task was started too soon"
    if "token" not in broken:
        yield f"  fencing tokens: {verdict.grants:,}, each above those given before it was asked for"
    if "stale write" not in broken:
        yield f"  files that compare tokens: {verdict.writes:,} writes taken, none from an old holder"
    yield _control(verdict)
    yield from _waiting(verdict, starved="starved" in broken)
    if verdict.wrote:
        yield "  processes that ended by themselves wrote:"
        yield from (f"    {line}" for line in verdict.wrote.splitlines())
    if verdict.left:
        yield f"  left behind: {verdict.left}"
    telling = _telling(verdict.violations)
    for violation in telling:
        yield f"  BROKEN, {_MEANING[violation.rule]}: {violation}"
    if len(verdict.violations) > len(telling):
        yield f"  and {len(verdict.violations) - len(telling)} more"
    if verdict.history:
        yield f"  what every process recorded is in {verdict.history}"


def _telling(violations: Sequence[Violation]) -> list[Violation]:
    """A few of them, in their order, with the first of each rule: many of one must not hide another."""
    firsts = {each.rule: at for at, each in reversed([*enumerate(violations)])}
    told = dict.fromkeys([*firsts.values(), *range(len(violations))])
    return [violations[at] for at in sorted([*told][: max(FEW, len(firsts))])]


def _by_primitive(verdict: Verdict) -> Iterator[str]:
    for each in verdict.resources:
        done, struck = verdict.done[each], verdict.hit_by[each]
        found = {
            "violation": f"VIOLATED, {_count(verdict.broken(each), 'promise')} broken",
            "inconclusive": "nothing shown",
            "clean": "no violation",
        }[verdict.outcome_of(each)]
        yield f"  {_NAME[each]}: {done:,} cycles, {struck:,} faults struck a holder: {found}"


def _control(verdict: Verdict) -> str:
    """Whether the faults bit."""
    if verdict.stale:
        return (
            f"  files that compare nothing (the control): {verdict.stale:,} late writes of paused "
            "holders got in, so the faults bit"
        )
    return "  files that compare nothing (the control): no late write got in, so no fault bit"


def _waiting(verdict: Verdict, *, starved: bool) -> Iterator[str]:
    if verdict.calm and not starved:
        yield f"  waiting: after the last fault everybody was served, in {verdict.calm:.0f} s of calm"
    yield from _spread("hand-off, undisturbed", verdict.handoffs)
    yield from _spread("hand-off, among faults", verdict.takeovers)


def _spread(what: str, values: Sequence[float]) -> Iterator[str]:
    if values:
        at = spread(values)
        p50, p99, most = (_time(float(at[part] or 0.0)) for part in ("p50", "p99", "max"))
        yield f"  {what}: p50 {p50}, p99 {p99}, longest {most} ({len(values):,} measured)"


# ---- what it means ------------------------------------------------------------------------------


def _meaning(verdict: Verdict) -> Iterator[str]:
    yield "What it means:"
    if verdict.violations:
        yield "  Each of these really happened: what nobody saw was taken in the store's favour."
        yield "  Don't rely on this deployment for exclusion until it is explained. A store that lost"
        yield "  data explains it: a restart of one that keeps nothing, a fail-over to one that lags."
        return
    if verdict.outcome == "inconclusive":
        yield "  Nothing: a fault might not have been seen. Run it longer (--seconds)."
        return
    yield (
        f"  None in {verdict.cycles:,} cycles bounds the rate of violations to about 3/n: "
        f"{_rate(verdict.cycles)} of cycles;"
    )
    yield (
        f"  none in {verdict.struck:,} faults that struck a holder: {_rate(verdict.struck)} "
        "of such faults (95 % confidence, if trials are alike)."
    )
    yield "  A longer run (--seconds) makes it smaller; no run makes it zero."
    yield "  The control's late writes are nobody's bug: no lock prevents them. Have your resource"
    yield "  compare the token (lease.token), as the other files did."


def _rate(trials: int) -> str:
    if trials > 30_000:
        return f"{3 / trials:.2g}"
    percent = min(100.0, 300 / trials)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


# ---- what was not tried -------------------------------------------------------------------------


def _not_tried(verdict: Verdict) -> Iterator[str]:
    yield "Not tried:"
    if not verdict.calm:
        yield "  whether everybody is served once faults end (the run was too short for that),"
    if verdict.scope == "cluster":
        yield "  restarts, fail-over or loss of data of the store; slow, cut or half-open connections;"
        yield "  clients on several machines, and clocks that run apart or are set;"
    else:
        yield "  crashes of this machine, loss of power, a full disk, a suspended machine;"
    others = [_PLURAL[each] for each in PRIMITIVES if each not in verdict.resources]
    yield f"  {', '.join(['long leases', *others])} and priorities."


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}" + "s" * (len(things) != 1)
