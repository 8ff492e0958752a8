"""The Lease object of a key: its name, what it shows to others, and what other electors write into it.

`leader:NAME` is the Lease `NAME`, on which electors of client-go can compete with ours. The book lies in an
annotation. The spec is written for others: who leads, and for how long nobody else may.
"""

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from dibs.core.book import Hold, MemoryBook
from dibs.core.codec import decode_notification, encode
from dibs.core.names import fingerprint
from dibs.core.timing import TOMBSTONE_TTL
from dibs.errors import Corrupt, NotConfigured
from dibs.model import Notification
from dibs.stores.cas.cells import Cell, Change, TooLarge
from dibs.stores.cas.clock import UNDATED
from dibs.stores.cas.format import read_state, unreadable, write_state

MAX_ANNOTATIONS, HARD_LIMIT = 150_000, 260_000
"""Bytes of all annotations when an id is added, and at any time: Kubernetes takes 256 KiB."""

BOOK, KEY, SPEC, NOTIFICATIONS = "dibs/book", "dibs/key", "dibs/spec", "dibs/notifications"
"""Annotations. `dibs/spec` is the record as we wrote it last: if it has changed, another elector wrote."""

RECORD = (
    "holderIdentity",
    "leaseDurationSeconds",
    "acquireTime",
    "renewTime",
    "leaseTransitions",
)
"""What electors write into the spec."""

KIND, MANAGED_BY, INBOX = "dibs/kind", "app.kubernetes.io/managed-by", "inbox.dibs/"
"""Labels. Each inbox is a label of its own, which its client watches: of who is notified or writes next."""

WRITERS = 4
"""Holders, and waiters, of a contended key that watch it."""

NO_TIME = 1 << 62
"""Microseconds: a moment far ahead, so that a hold of unknown age has the age 0."""

FOREIGN = "foreign:"
"""What the ids of holds begin with that another elector has."""

_NOTHING = (0, 0, 0)
"""What the spec shows if nobody holds."""

_token_of = attrgetter("token")

_OURS = "dibs-"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[a-z]+")
_ESCAPED = re.compile(r"[^a-z0-9.-]|(?<![a-z0-9])[.-]|[.-](?![a-z0-9])|-")
_LABEL = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
MAX_NAME = 253

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


type State = dict[str, Any]


class LeaseVersion(msgspec.Struct, frozen=True):
    """A Lease as it was read or written last, without its book."""

    metadata: dict[str, Any]
    spec: dict[str, Any]
    shown: tuple[int, int, int]
    """Token and beat of the hold that the spec shows, and how many there are."""


def is_later(version: LeaseVersion, than: LeaseVersion) -> bool:
    """Whether a Lease was written later. Their resourceVersions are numbers on all real servers."""
    one, other = (each.metadata.get("resourceVersion", "") for each in (version, than))
    return one.isdigit() and other.isdigit() and int(one) > int(other)


# -- names ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def lease_name(key: bytes) -> str:
    """The name of the Lease of a key. Two keys never share one."""
    kind, _, raw = key.decode("latin-1").partition(":")
    is_subdomain = len(raw) <= MAX_NAME and _SUBDOMAIN.fullmatch(raw) is not None
    if kind == "leader" and is_subdomain and not raw.startswith(_OURS):
        return raw
    escaped = _ESCAPED.sub(_escape, raw)
    name = f"{_OURS}{kind}{'' if escaped.startswith('-') else '.'}{escaped}"
    if len(name) > MAX_NAME or kind == "hash" or not raw or not _WORD.fullmatch(kind):
        return f"{_OURS}hash.{sha256(key).hexdigest()}"
    return name


def _escape(found: re.Match[str]) -> str:
    """A hyphen between letters is doubled, all else is a hyphen and two hexadecimal digits."""
    text = found[0]
    is_inside = text == "-" and found.start() > 0 and found.end() < len(found.string)
    return "--" if is_inside else f"-{ord(text):02x}"


@lru_cache(maxsize=4096)
def kind_label(key: bytes) -> str:
    """The value of the label `dibs/kind`."""
    kind = key.partition(b":")[0].decode("latin-1")
    return kind if _WORD.fullmatch(kind) and len(kind) < 64 else "other"


@lru_cache(maxsize=4096)
def key_text(key: bytes) -> str:
    """A key as the annotation has it."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and not text.startswith("base64:"):
        return text
    return f"base64:{b64encode(key).decode()}"


def true_key(lease: Mapping[str, Any]) -> bytes | None:
    """The key that a Lease is for, by its annotation. None: Dibs has not written it."""
    text = (lease["metadata"].get("annotations") or {}).get(KEY)
    if text is None:
        return None
    if text.startswith("base64:"):
        with suppress(ValueError):  # else it is the key of no Lease
            return b64decode(text.removeprefix("base64:"))
    return str(text).encode()


# -- reading --------------------------------------------------------------------------------------


def read_lease(key: bytes, lease: dict[str, Any]) -> Cell:
    """The cell in a Lease. Raises `Corrupt`, `IncompatibleVersion`, `NotConfigured`."""
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    metadata.pop("managedFields", None)  # the server keeps them, and they are long
    annotations = metadata.setdefault("annotations", {})
    name, found = metadata["name"], true_key(lease)
    if found != key and (found is not None or name.startswith(_OURS)):
        told = "of no key of Dibs" if found is None else f"of the key {found!r}"
        raise Corrupt(f"the Lease {name} is {told}, and should be of {key!r}: rename or delete it")
    if spec.get("strategy") or spec.get("preferredHolder"):
        raise NotConfigured(
            f"the Lease {name} is for Kubernetes' coordinated leader election, which elects by itself; "
            "use another name"
        )
    text = annotations.pop(BOOK, None)
    where = f"in the Lease {name}"
    state = dict(_EMPTY) if text is None else read_state(text, where)
    try:
        if annotations.get(SPEC) != _text(spec):
            state = _overruled(state, spec)
        shown = _shown(state["entries"])
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(where, error) from error
    return Cell(LeaseVersion(metadata, spec, shown), state, where)


_EMPTY: State = {"last": 0, "capacity": 0, "arrivals": 0, "doubt": 0, "entries": []}


def _text(spec: Mapping[str, Any]) -> str:
    """The record in a spec; what the server or others add to a spec does not count."""
    return _encode([spec.get(field) or None for field in RECORD]).decode()


def _shown(entries: Iterable[Mapping[str, Any]]) -> tuple[int, int, int]:
    holds = [(each["token"], each.get("beat", 0)) for each in entries if each["is"] == "hold"]
    return (*min(holds), len(holds)) if holds else _NOTHING


def _overruled(state: State, spec: Mapping[str, Any]) -> State:
    """The book after another elector wrote: what we knew to be held is not, and the queue stays.

    The other's hold has a beat that is a hash of its record, so that each renewal shows.
    """
    entries: list[Any] = []
    last, arrivals, owner = state["last"], state["arrivals"], spec.get("holderIdentity")
    record = sha256(_text(spec).encode()).digest()
    term = sha256(_encode([owner, spec.get("leaseTransitions")])).hexdigest()
    foreign, token = FOREIGN + term[:32], 0
    for each in state["entries"]:
        if each["id"] == foreign:
            token = each.get("token", 0)
        elif each["is"] != "hold":
            entries.append(each)
        elif not each["id"].startswith(FOREIGN):
            arrivals += 1
            entries.append(_tombstone(each["id"], arrivals))
    if owner:
        token = token or last + 1
        entries.append(
            {
                "is": "hold",
                "id": foreign,
                "owner": owner,
                "token": token,
                "units": 1,
                "slots": [0],
                "ttl": float(spec.get("leaseDurationSeconds") or 1),
                "expires": UNDATED,
                "beat": int.from_bytes(record[:6]),
                "since": _microseconds(spec.get("acquireTime")),
            }
        )
    capacity = state["capacity"] or 1
    return state | {
        "last": max(last, token),
        "capacity": capacity,
        "arrivals": arrivals,
        "entries": entries,
    }


def _microseconds(time: object) -> int:
    """A time that another elector wrote, in microseconds since 1970; `NO_TIME` if it can't be read."""
    try:
        read = datetime.fromisoformat(str(time))
        return int(read.timestamp() * 1e6) if read.tzinfo is not None else NO_TIME
    except (ValueError, OverflowError, OSError):
        return NO_TIME


def _tombstone(lease_id: str, beat: int) -> dict[str, Any]:
    """Without it, a late copy of the Acquire of this id could be granted."""
    return {
        "is": "tombstone",
        "id": lease_id,
        "ttl": TOMBSTONE_TTL,
        "expires": UNDATED,
        "beat": beat,
    }


# -- writing --------------------------------------------------------------------------------------


def write_lease(
    key: bytes, namespace: str, old: LeaseVersion | None, change: Change
) -> LeaseVersion:
    """The Lease for a change, with its book. What others have put into it stays. Raises `TooLarge`."""
    assert change.state is not None
    if old is None:
        labels = {MANAGED_BY: "dibs"}
        metadata: dict[str, Any] = {"name": lease_name(key), "namespace": namespace}
        old = LeaseVersion(metadata | {"labels": labels}, {}, _NOTHING)
    first = min(change.book.holds(), key=_token_of, default=None)
    shown = _NOTHING if first is None else (first.token, first.beat, change.book.holding)
    spec = old.spec if shown == old.shown and old.spec else _write_spec(old, first, shown)
    annotations = dict(old.metadata.get("annotations") or {})
    annotations.pop(NOTIFICATIONS, None)
    annotations[BOOK] = write_state(change.state).decode()
    annotations[KEY], annotations[SPEC] = key_text(key), _text(spec)
    if change.notifications:
        said = [[each.inbox, *encode(each)] for each in change.notifications]
        annotations[NOTIFICATIONS] = _encode(said).decode()
    size = len("".join((*annotations, *annotations.values())).encode())
    if size > (MAX_ANNOTATIONS if change.grows else HARD_LIMIT):
        raise TooLarge(f"{size} bytes of annotations")
    labels = old.metadata.get("labels") or {}
    labels = {name: value for name, value in labels.items() if not name.startswith(INBOX)}
    labels[KIND] = kind_label(key)
    for inbox in {each.inbox for each in change.notifications} | _next_writers(change.book):
        if _LABEL.fullmatch(inbox):
            labels[INBOX + inbox] = ""
    return LeaseVersion(old.metadata | {"annotations": annotations, "labels": labels}, spec, shown)


def _write_spec(
    old: LeaseVersion, first: Hold | None, shown: tuple[int, int, int]
) -> dict[str, Any]:
    """What others see. It changes with the signs of life of the first holder, and with nothing else.

    client-go compares times in whole seconds, so two renewals within a second look like one to it. Hence
    the second more than the ttl: else it takes over while the holder still trusts its lease. It also waits
    for the lock delay.
    """
    if first is not None and first.id.startswith(FOREIGN):
        return old.spec
    transitions = old.spec.get("leaseTransitions") or 0
    now = _microtime()
    if first is None:
        return old.spec | {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "leaseTransitions": transitions,
            "acquireTime": now,
            "renewTime": now,
        }
    is_new = first.token != old.shown[0]
    others = f" and {shown[2] - 1} more" if shown[2] > 1 else ""
    return old.spec | {
        "holderIdentity": _identity(first) + others,
        "leaseDurationSeconds": math.ceil(first.ttl + first.lock_delay) + 1,
        "leaseTransitions": transitions + (is_new and bool(old.spec)),
        "acquireTime": now if is_new else old.spec.get("acquireTime") or now,
        "renewTime": now,
    }


def _identity(hold: Hold) -> str:
    """The owner and the token. client-go takes a record with its own identity for its own, so a process must
    differ from an earlier one of the same name.
    """
    return f"{hold.owner}_{hold.token}" if hold.owner else hold.state


def _microtime() -> str:
    """Now, with a fraction of six digits, as the server wants it."""
    now = datetime.now(UTC).replace(tzinfo=None)  # writing an offset takes longer
    return now.isoformat(timespec="microseconds") + "Z"


# -- notifications --------------------------------------------------------------------------------


def _next_writers(book: MemoryBook) -> set[str]:
    """The inboxes of the first holders and waiters of a contended key: one of them writes next.

    Their watches bring each change, so that they need not load it. And if another elector holds, its end is
    all that the first waiter is told.
    """
    if not book.waiting:
        return set()
    holds = [hold.inbox for hold in islice(book.holds(), WRITERS)]
    waiters = [waiter.inbox for waiter in islice(book.queue(), WRITERS)]
    return {*holds, *waiters} - {""}


def read_notifications(lease: Mapping[str, Any], inbox: str) -> Sequence[Notification]:
    """What a Lease says to an inbox; nothing that another has written there in its own way."""
    annotations = lease["metadata"].get("annotations") or {}
    try:
        key = true_key(lease)
        if key is None:
            return ()
        said = _decode(annotations.get(NOTIFICATIONS) or "[]")
        found = [decode_notification(each[1:], key, inbox) for each in said if each[0] == inbox]
        if _is_freed(lease, annotations):
            found += _to_first(key, annotations, inbox)
    except (ValueError, TypeError, LookupError, AttributeError, msgspec.MsgspecError):
        return ()
    return found


def _is_freed(lease: Mapping[str, Any], annotations: Mapping[str, str]) -> bool:
    """Whether another elector has given it up."""
    spec = lease.get("spec") or {}
    return not spec.get("holderIdentity") and annotations.get(SPEC) != _text(spec)


def _to_first(key: bytes, annotations: Mapping[str, str], inbox: str) -> Sequence[Notification]:
    """Tell the first waiter, if that is of this inbox, to ask again."""
    waiters = [
        each for each in _decode(annotations.get(BOOK) or "{}")["entries"] if each["is"] == "waiter"
    ]
    first = min(waiters, key=lambda each: (-each["priority"], each["arrival"]), default=None)
    if first is None or first.get("inbox") != inbox:
        return ()
    return [Notification(key, fingerprint(first["id"]), inbox, "head")]
