"""Whether the servers' events tell the truth, while two servers are tortured.

A reader follows each server's `/v1/events`. What a stream says must hold for itself: a hold ends before the
next one of its slot is granted, the ends carry how long it was held, and tokens rise. A server that starts
anew remembers nothing, so its stream is judged from then on.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from dibs.cli.service import Tail

CLOSE = 0.005
"""Seconds by which times of two events may disagree."""

ENDS = ("released", "expired", "freed")

type Event = Mapping[str, Any]
type Key = tuple[str, str]


class StreamJudge:
    def __init__(self, name: str) -> None:
        self.lies: list[str] = []
        self.counts: Counter[str] = Counter()
        self._name = name
        self._server = ""
        self._held: dict[Key, dict[str, Event]] = defaultdict(dict)
        """The grant, or the latest size, of each lease that has not ended."""
        self._ended: dict[tuple[Key, int], Event] = {}
        """The end of the last hold of each slot."""

    def take(self, kind: str, data: Event) -> None:
        """One more event of the stream, or its head."""
        if kind == "reset" or (kind == "hello" and data["server"] != self._server):
            self._server = data.get("server", self._server)
            self.counts["begun"] += 1
            self._held.clear()
            self._ended.clear()
        elif kind == "message":
            self.counts[data["what"]] += 1
            key = data["kind"], data["name"]
            for lie in self._lies(key, self._held[key], data):
                self.lies.append(f"{self._name} {self._server}: {lie}: {data}")

    def _lies(self, key: Key, held: dict[str, Event], event: Event) -> Generator[str]:
        what, lease, token = event["what"], event["lease"], event["token"]
        known = held.get(lease)
        if what == "granted":
            if known is not None:
                yield f"it has token {known['token']} already"
            for other in held.values():
                if other is not known and _exclude(other, event):
                    yield f"granted before the end of token {other['token']} was reported"
            for slot in event["slots"]:
                last = self._ended.get((key, slot), {"at": 0.0, "token": 0})
                if event["at"] < last["at"] - CLOSE:
                    early = last["at"] - event["at"]
                    yield f"granted {early:.3f} s before the end of token {last['token']}"
                if token <= last["token"]:
                    yield f"its token is not above {last['token']}"
            held[lease] = event
        elif what == "resized" and known is not None:
            held[lease] = {**event, "at": known["at"]}
        elif what in ENDS:
            self._ended |= {(key, slot): event for slot in event["slots"]}
            if known is None:
                return  # it was granted before the stream began
            del held[lease]
            self.counts["judged"] += 1
            if known["token"] != token:
                yield f"it had token {known['token']}"
            length = event["at"] - known["at"]
            if length < -CLOSE:
                yield f"it ended {-length:.3f} s before it was granted"
            if abs(length - event["held_for"]) > CLOSE:
                yield f"it was held for {length:.3f} s"


def _exclude(one: Event, other: Event) -> bool:
    """Whether both at once are too many: they share a slot, or one of them is a writer's."""
    writes = one["kind"] == "rwlock" and None in (one["units"], other["units"])
    return writes or bool(set(one["slots"]) & set(other["slots"]))


def judged(url: str, name: str, over: threading.Event) -> StreamJudge:
    """Follow one server's events, however often that is killed, until it is over."""
    judge = StreamJudge(name)
    with closing(Tail(url, "/events")) as tail:
        while not over.is_set():
            if (found := tail.take(0.2)) is not None:
                judge.take(found.kind, found.data if isinstance(found.data, Mapping) else {})
    return judge
