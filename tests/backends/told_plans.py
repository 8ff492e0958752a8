"""Plans that chance comes upon too seldom: who waits or holds has ended, is silent, or asks for too much.

A plan is a list of batches, and of seconds between them.
"""

from typing import Any

from dibs.model import Acquire, Inspect, Release, Renew, Resize, Revoke

LINE = b"lock:a"
BOTH = (LINE, b"lock:c")


def wish(lease: str, **more: Any) -> Acquire:
    """An acquire that waits."""
    wishes = {"owner": "o", "ttl": 30.0, "queue": True, "inbox": "there", **more}
    return Acquire(LINE, lease, **wishes)


def leave(lease: str, **more: Any) -> Release:
    """Its release."""
    return Release(LINE, lease, **more)


def everywhere(kind: type[Any], lease: str, **more: Any) -> list[Any]:
    """The same of two keys in one batch, where each is the only one of its key."""
    sound = {"owner": "o", "ttl": 30.0, "queue": True, "inbox": "there"} if kind is Acquire else {}
    return [kind(key, lease, **{**sound, **more}) for key in BOTH]


TOLD: list[list[Any]] = [
    [[wish("a", inbox="here")], [Renew(LINE, "a", 30.0, "there")], [Revoke(LINE, None, "so")]],
    [[wish("a", ttl=1.5), wish("b")], 1.7, [leave("a")]],
    [[wish("a"), wish("b", patience=1.0), wish("c")], 1.7, [leave("a")]],
    [[wish("a"), wish("b", ttl=3.0), wish("c")], 5.0, [leave("a")]],
    [[wish("a"), wish("b"), wish("c", ttl=3.0)], 5.0, [leave("a")]],
    [[wish("a"), wish("b", lock_delay=2.0)], [leave("a")], 5.0, [Inspect(LINE)]],
    [[wish("a"), wish("b"), wish("c")], [leave("a")], 5.0, [Inspect(LINE)]],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2), wish("d"), Resize(LINE, "a", 1, 1), leave("a")],
    ],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2), wish("d"), Resize(LINE, "a", 1, 1)],
        [leave("a")],
    ],
    [
        [wish("a", capacity=2), wish("b", capacity=2), wish("c", capacity=2)],
        [wish("d", capacity=2), wish("e", capacity=2)],
        [wish("f", capacity=2), leave("a"), leave("b"), leave("c"), Inspect(LINE)],
        [wish("g", capacity=2, priority=1), leave("d"), leave("e"), Inspect(LINE)],
    ],
    [[wish("a")], [leave("a", keep=4.0)], [leave("a")], [wish("b", queue=False)]],
    [[wish("a"), wish("b")], [leave("a", keep=4.0)], [leave("a")], [Inspect(LINE)]],
    [[wish("a", ttl=3.0), wish("b")], 3.5, [leave("a")], [Inspect(LINE)]],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2), wish("c", units=2, capacity=2)],
        [wish("d")],
        [leave("a")],
        [Inspect(LINE)],
    ],
    [
        [wish("a", units=2, capacity=2), wish("b", capacity=2)],
        [wish("c", units=2, capacity=2, ttl=3.0), wish("d", capacity=2)],
        2.0,
        [Renew(LINE, "b", 30.0, "there"), Renew(LINE, "d", 30.0, "there")],
        2.0,
        [leave("a")],
        [Inspect(LINE)],
    ],
    [
        [wish("a", ttl=3.0), *(wish(lease) for lease in "bcdefgh")],
        5.7,
        [Renew(LINE, "h", 30.0, "there"), Renew(LINE, "g", 30.0, "there")],
        5.0,
        [Renew(LINE, "h", 30.0, "there")],
    ],
    [
        [wish("a", ttl=3.0, lock_delay=4.0), *(wish(lease) for lease in "bcdefgh")],
        5.7,
        [Renew(LINE, "h", 30.0, "there"), Renew(LINE, "g", 30.0, "there")],
    ],
    [[wish("a", ttl=3.0)], 5.0, [leave("a")], [Inspect(LINE)]],
    [[wish("a", ttl=3.0, lock_delay=2.0)], 4.0, [wish("b")], 1.7, [Inspect(LINE)]],
    [[wish("a", units=3, capacity=3)], [Resize(LINE, "a", 2, 2)], [Resize(LINE, "a", 1, 1)]],
    [[wish("a"), wish("b", tokens=5)], [leave("a")], [leave("b")], [wish("c")]],
    [[wish("a"), wish("b"), wish("c", capacity=2)], [Inspect(LINE)]],
    [everywhere(Acquire, "a", tokens=5), everywhere(Release, "a"), everywhere(Acquire, "b")],
    [[Inspect(LINE)], everywhere(Acquire, "a"), [wish("b")], everywhere(Release, "a")],
    [everywhere(Acquire, "a", ttl=3.0), 5.0, everywhere(Renew, "a", ttl=30.0)],
    [everywhere(Acquire, "a"), everywhere(Release, "a", bury=6.0), everywhere(Acquire, "a")],
]
