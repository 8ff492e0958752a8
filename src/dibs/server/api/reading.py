"""Pages of the keys that an API key may read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import NamedTuple

from dibs.core.names import KINDS, MAX_NAME, Kind
from dibs.model import Command, Failed, Holder, Inspect, Status, Waiter
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.api.problems import ApiProblem
from dibs.server.auth.policy import Principal, Scope, reduced
from dibs.server.leases import LeaseService
from dibs.server.quotas import FairQueue
from dibs.stores.http.names import MARK, decoded

LOOKS = 16
"""Most store pages read for one answer; a page can be empty without being the last."""

AT_ONCE = 100
"""Keys that are read or encoded before other requests run."""

PAGE_BYTES = 1 << 20
"""A page ends with the key that brings it above about this size."""


LOOKS_AT_ONCE = 16
"""Keys that are read at a time for a batch."""

_ENOUGH = TimedReply(
    Failed("busy", "the answer has its limit of about 1 MB: ask again for these"), 0
)


def size_of(status: Status) -> int:
    """Approximate size as JSON, in bytes."""
    listed: tuple[Holder | Waiter, ...] = (*status.holders, *status.waiters)
    texts = sum(250 + _length(each.owner) + _length(each.note) for each in listed)
    return 200 + texts + 5 * sum(len(each.slots) for each in status.holders)


def _length(text: str) -> int:
    return len(text) if text.isascii() and text.isprintable() else 6 * len(text)


def bounded(results: Iterable[CallResult]) -> Sequence[CallResult]:
    """The same, with `Failed` for each status that begins beyond `PAGE_BYTES`."""
    found, size = list[CallResult](), 0
    for each in results:
        length = _bytes_of(each)
        found.append(_ENOUGH if length and size >= PAGE_BYTES else each)
        size += length
    return found


def _bytes_of(result: CallResult) -> int:
    status = result.reply if isinstance(result, TimedReply) else None
    return size_of(status) if isinstance(status, Status) else 0


class KeysFound(NamedTuple):
    """Some keys, and the key after which the next page begins; None after the last."""

    items: list[Status]
    cursor: bytes | None


HEADS = tuple(sorted(kind.encode() + b":" for kind in KINDS))
"""Prefixes of the keys of each kind, in their order."""


def heads_of(kind: Kind | None) -> Sequence[bytes]:
    """Prefixes of the keys of a kind, or of all kinds."""
    return HEADS if kind is None else (kind.encode() + b":",)


def names_of(text: str) -> bytes:
    """The prefix of names in a parameter. Raises `ApiProblem`, 400."""
    try:
        raw = decoded(text.removeprefix(MARK))
    except ValueError:
        raise ApiProblem(
            "malformed",
            f"write a prefix of names as {MARK} followed by its bytes in URL-safe base64 without padding",
        ) from None
    if len(raw) > MAX_NAME:
        raise ApiProblem("malformed", f"a prefix of names must be at most {MAX_NAME} bytes long")
    return raw


def stretches(principal: Principal, prefixes: Iterable[bytes]) -> Iterable[bytes]:
    """Narrow prefixes of keys to those that the API key may read."""
    for prefix in prefixes:
        head, colon, wanted = prefix.partition(b":")
        for name in _seen(principal, wanted):
            yield head + colon + name


def _seen(principal: Principal, wanted: bytes) -> Iterable[bytes]:
    """Narrow a prefix of names to those that the API key may read."""
    if principal.may(Scope.READ, wanted):
        return (wanted,)
    if not principal.may_somewhere(Scope.READ):
        return ()
    return tuple(each for each in reduced(principal.prefixes) if each.startswith(wanted))


def _before(stretch: bytes) -> bytes:
    """A key before all keys of this stretch, and after those of earlier stretches."""
    return stretch[:-1] + (bytes([stretch[-1] - 1]) + b"\xff" * 4 if stretch[-1] else b"")


@dataclass(eq=False)
class KeyReader:
    """Reads the keys that an API key may read, with fair turns between API keys."""

    _leases: LeaseService
    _reading: FairQueue

    async def read(
        self,
        principal: Principal,
        prefixes: Iterable[bytes],
        after: bytes | None,
        limit: int,
    ) -> KeysFound:
        """The next keys in use after `after` that the API key may read.

        `prefixes` are prefixes of keys, in order, each with its kind.
        """
        items: list[Status] = []
        looks = size = 0
        for stretch in stretches(principal, prefixes):
            if after is not None and after >= stretch and not after.startswith(stretch):
                continue  # earlier pages had these
            cursor = after if after is not None and after.startswith(stretch) else None
            if cursor is None and looks:
                # only for a first page, without a cursor, a store of Redis lists all its keys
                cursor = _before(stretch)
            while True:
                if looks >= LOOKS:
                    return KeysFound(items, cursor or _before(stretch))
                few = min(limit - len(items), AT_ONCE)
                async with self._reading.turn(principal.key_id, AT_ONCE):
                    page = await self._leases.runtime.scan(stretch, cursor, few)
                looks += 1
                cursor = page.cursor
                for item in page.items:
                    items.append(item)
                    size += size_of(item)
                    if size >= PAGE_BYTES:
                        return KeysFound(items, item.key)
                if len(items) >= limit:
                    return KeysFound(items, cursor or items[-1].key)
                if cursor is None:
                    break
        return KeysFound(items, None)

    async def ask_in_parts(
        self, who: Principal, commands: Sequence[Command]
    ) -> Sequence[CallResult]:
        """Apply commands. Read few keys at a time, and none beyond `PAGE_BYTES`."""
        results = list[CallResult]()
        looks = [n for n, each in enumerate(commands) if type(each) is Inspect]
        for at, end in pairwise([0, *looks[LOOKS_AT_ONCE::LOOKS_AT_ONCE], len(commands)]):
            full = sum(map(_bytes_of, results)) >= PAGE_BYTES
            is_asked = [not full or type(each) is not Inspect for each in commands[at:end]]
            asked = list(compress(commands[at:end], is_asked))
            answers = iter(await self._leases.ask_all(who, asked) if asked else ())
            results += [next(answers) if each else _ENOUGH for each in is_asked]
        return results
