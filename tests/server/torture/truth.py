"""`python -m tests.server.torture.truth --seconds 600`: do the servers' events tell the truth?

The torture of two servers, with a reader of each server's `/v1/events`. What a stream says must hold for
itself: a hold ends before the next one of its slot is granted, the ends carry how long it was held, and
tokens rise. A server that starts anew remembers nothing, so its stream is judged from then on.
"""

import argparse
import signal
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dibs.cli.service import Tail
from dibs.errors import DibsError
from dibs.testing import TorturePlan
from dibs.testing.torture.verdict import Verdict
from tests.server.torture.servers import Site, StoreName, running
from tests.server.torture.storm import SERVER_FAULTS
from tests.server.torture.trial import KINDS, ServiceTorture

CLOSE = 0.005
"""Seconds by which times of two events may disagree."""

REMEMBERED = 8
"""Events of a key that are shown with a lie."""

ENDS = ("released", "expired", "freed")


@dataclass(slots=True)
class Held:
    """A hold that a stream has told, and not its end."""

    lease: str
    token: int
    units: int | None
    slots: tuple[int, ...]
    since: float


@dataclass(slots=True)
class Told:
    """What a stream has told of one key."""

    held: dict[str, Held] = field(default_factory=dict[str, Held])
    """By the fingerprints of lease ids."""
    ended: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    """When the last hold of each slot ended, and its token."""
    latest: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Its latest events, for whoever looks into a lie."""


class StreamJudge:
    """Judges the events of one stream, one after the other."""

    def __init__(self, name: str) -> None:
        self.lies: list[str] = []
        self.counts: Counter[str] = Counter()
        self._name = name
        self._server = ""
        self._keys: dict[tuple[str, str], Told] = {}

    def take(self, kind: str, data: Mapping[str, Any]) -> None:
        """One more event of the stream, or its head."""
        if kind == "hello" and data["server"] != self._server:
            self._server = data["server"]
            self._begin_anew()
        elif kind == "reset":
            self._begin_anew()
        elif kind == "message":
            self._happened(data)

    def _begin_anew(self) -> None:
        self.counts["begun"] += 1
        self._keys.clear()

    def _lie(self, told: Told, what: str) -> None:
        self.lies.append(
            "\n    ".join([f"{self._name} {self._server}: {what}", *map(str, told.latest)])
        )

    def _happened(self, event: Mapping[str, Any]) -> None:
        what = event["what"]
        self.counts[what] += 1
        self.counts["found"] += event["found"]
        told = self._keys.setdefault((event["kind"], event["name"]), Told())
        told.latest.append(event)
        if what == "granted":
            self._granted(told, event)
        elif what == "resized":
            self._resized(told, event)
        elif what in ENDS:
            self._ended(told, event)

    def _granted(self, told: Told, event: Mapping[str, Any]) -> None:
        hold = _hold_of(event)
        known = told.held.get(hold.lease)
        if known is not None:
            self._lie(told, f"it has token {known.token} already")
        for other in told.held.values():
            if other.lease != hold.lease and _exclude(event["kind"], other, hold):
                self._lie(told, f"granted before the end of token {other.token} was told")
        for slot in hold.slots:
            ended, token = told.ended.get(slot, (0.0, 0))
            if hold.since < ended - CLOSE:
                self._lie(
                    told, f"granted {ended - hold.since:.3f} s before the end of token {token}"
                )
            if hold.token <= token:
                self._lie(told, f"its token is not above {token}")
        told.held[hold.lease] = hold

    def _resized(self, told: Told, event: Mapping[str, Any]) -> None:
        known = told.held.get(event["lease"])
        if known is not None:
            hold = _hold_of(event)
            hold.since = known.since
            told.held[hold.lease] = hold

    def _ended(self, told: Told, event: Mapping[str, Any]) -> None:
        known = told.held.pop(event["lease"], None)
        at = event["at"]
        for slot in event["slots"]:
            told.ended[slot] = (at, event["token"])
        if known is None:
            return  # it was granted before the stream began
        self.counts["judged"] += 1
        if known.token != event["token"]:
            self._lie(told, f"it had token {known.token}")
        held = at - known.since
        if held < -CLOSE:
            self._lie(told, f"it ended {-held:.3f} s before it was granted")
        if abs(held - event["held_for"]) > CLOSE:
            self._lie(told, f"it was held for {held:.3f} s")


def _hold_of(event: Mapping[str, Any]) -> Held:
    slots = tuple(event["slots"])
    return Held(event["lease"], event["token"], event["units"], slots, event["at"])


def _exclude(kind: str, one: Held, other: Held) -> bool:
    """Whether both at once are too many: they share a slot, or one of them is a writer's."""
    if set(one.slots) & set(other.slots):
        return True
    return kind == "rwlock" and None in (one.units, other.units)


class StreamReader:
    """A thread that follows one server's events, however often that is killed."""

    def __init__(self, url: str, name: str) -> None:
        self.judge = StreamJudge(name)
        self.trouble = ""
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"events of {name}")
        self._thread.start()

    def _read(self) -> None:
        try:
            with closing(Tail(self._url, "/events")) as tail:
                while not self._over.is_set():
                    if (told := tail.take(0.2)) is not None:
                        data = told.data if isinstance(told.data, Mapping) else {}
                        self.judge.take(told.kind, data)
        except DibsError as error:
            self.trouble = f"{self.judge._name}: {error}"

    def close(self) -> None:
        """Read no more."""
        self._over.set()
        self._thread.join()


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    verdict: Verdict
    faults: Counter[str]
    trouble: list[str]
    lies: list[str]
    counts: list[Counter[str]]
    """Of each stream."""


@contextmanager
def followed(site: Site) -> Generator[list[StreamReader]]:
    """Follow the events of each server, past the ways that fail."""
    readers = [
        StreamReader(server.url, f"server {number}")
        for number, server in enumerate(site.servers, 1)
    ]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


def told_under_torture(
    folder: Path,
    store: StoreName,
    plan: TorturePlan,
    *,
    raw: int = 1,
    kinds: Collection[str] = SERVER_FAULTS,
) -> Outcome:
    """Torture two servers, and judge what their events say."""
    with running(folder, store, plan.seed) as site, followed(site) as readers:
        torture = ServiceTorture(site, plan, raw=raw, kinds=kinds)
        verdict = torture.run()
    trouble = [each for each in (torture.storm.trouble, *(one.trouble for one in readers)) if each]
    return Outcome(
        verdict,
        torture.storm.counts,
        trouble,
        [lie for reader in readers for lie in reader.judge.lies],
        [reader.judge.counts for reader in readers],
    )


def main() -> int:
    """The exit code: 0 if both streams told the truth."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.torture.truth")
    parser.add_argument("--store", choices=("redis", "postgres"), default="redis")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # all is ended on every way out
    plan = TorturePlan(
        seconds=chosen.seconds,
        processes=chosen.processes,
        tasks=chosen.tasks,
        ttl=chosen.ttl,
        seed=chosen.seed,
        primitives=KINDS,
    )
    with tempfile.TemporaryDirectory(prefix="truth-") as temporary:
        outcome = told_under_torture(chosen.folder or Path(temporary), chosen.store, plan)
    print(outcome.verdict)
    print("Servers:", dict(outcome.faults))
    for counts in outcome.counts:
        print("Events:", dict(counts))
    for line in (*outcome.trouble, *outcome.lies):
        print("  !", line)
    return 1 if outcome.trouble or outcome.lies else 0


if __name__ == "__main__":
    raise SystemExit(main())
