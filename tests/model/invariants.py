"""What must hold in every state and at every step of a world: DESIGN §3 and §7 as questions."""

from collections.abc import Iterator
from typing import Any

from tests.model.world import FOREVER, Call, Client, FrozenBook, FrozenEntry, Ghost, State, part

# ---- of a state -----------------------------------------------------------------------------------


def flaws_of(state: State, capacity: int) -> Iterator[str]:
    believers = [client for client in state.clients if client.believes]
    taken = sum(client.units for client in believers)
    if taken > capacity:
        yield f"two believers: {taken} units of {capacity} are within their holders' deadlines"
    shared = [slot for client in believers for slot in client.slots]
    if len(shared) != len(set(shared)):
        yield f"two believers share a slot: {shared}"
    yield from _flaws_of_book(state.book, capacity)
    for entry in state.book.entries:
        if entry[0] == "hold" and part(entry, "id") in state.ghost.ended and _is_somebodys(entry):
            yield f"{part(entry, 'id')} was given up, and holds again"


def _flaws_of_book(book: FrozenBook, capacity: int) -> Iterator[str]:
    holds = [entry for entry in book.entries if entry[0] == "hold"]
    used = sum(part(hold, "units") for hold in holds)
    if used > capacity:
        yield f"the book has {used} units of {capacity} taken"
    slots = [slot for hold in holds for slot in part(hold, "slots")]
    if len(slots) != len(set(slots)) or len(slots) != used:
        yield f"the book's slots are {slots} for {used} units"


def _is_somebodys(hold: FrozenEntry) -> bool:
    return bool(part(hold, "state") != "retained")


# ---- of what believers do at the resource ---------------------------------------------------------


def written(ghost: Ghost, clients: tuple[Client, ...]) -> tuple[Ghost, str | None]:
    """Every believer uses the resource, which refuses a token below one that it has seen."""
    for client in clients:
        if not client.believes:
            continue
        seen = list(ghost.written)
        for slot in client.slots:
            seen += [0] * (slot + 1 - len(seen))
            if client.token < seen[slot]:
                return ghost, f"fencing refuses a believer: {client.token} after {seen[slot]}"
            seen[slot] = client.token
        ghost = ghost._replace(written=tuple(seen))
    return ghost, None


# ---- of one step of the ledger --------------------------------------------------------------------


def tokens_of_step(old: FrozenBook, new: FrozenBook) -> tuple[int, ...]:
    """The tokens that were granted: each must be higher than all before it."""
    before = _by_id(old)
    return tuple(part(hold, "token") for hold in new.entries if _newly_granted(hold, before))


def flaws_of_step(old: FrozenBook, new: FrozenBook, call: Call) -> Iterator[str]:
    """What is wrong with how the ledger changed the book, by the store's clock."""
    before, after = _by_id(old), _by_id(new)
    for hold in after.values():
        if _newly_granted(hold, before):
            yield from _overtaken(hold, before, after, call, new.doubt)
            if part(hold, "id") not in before and call[:2] != ("acquire", part(hold, "id")):
                yield f"{part(hold, 'id')} was granted without being asked for"
    for hold in after.values():
        yield from _moved_expiry(before.get(part(hold, "id")), hold, call)


def _by_id(book: FrozenBook) -> dict[str, FrozenEntry]:
    return {part(entry, "id"): entry for entry in book.entries}


def _newly_granted(hold: FrozenEntry, before: dict[str, FrozenEntry]) -> bool:
    if hold[0] != "hold":
        return False
    old = before.get(part(hold, "id"))
    return old is None or old[0] != "hold" or part(old, "token") != part(hold, "token")


def _overtaken(
    hold: FrozenEntry,
    before: dict[str, FrozenEntry],
    after: dict[str, FrozenEntry],
    call: Call,
    doubt: int,
) -> Iterator[str]:
    """Nobody passes a place that speaks up, but by a higher priority."""
    old = before.get(part(hold, "id"), ("",))
    if old[0] == "hold":
        return  # it grew, which ignores the queue
    if old[0] == "tomb" and part(old, "expires") > 0:
        yield f"{part(hold, 'id')} has ended, and is granted again"
    mine: tuple[float, float]
    mine = _rank(old) if old[0] == "place" else (-call[4] if call[0] == "acquire" else 0, FOREVER)
    for place in before.values():
        stays = place[0] == "place" and after.get(part(place, "id"), ("",))[0] == "place"
        if stays and _rank(place) < mine and not _is_passed_over(place, doubt):
            yield f"{part(hold, 'id')} overtook {part(place, 'id')}"


def _rank(place: FrozenEntry) -> tuple[float, float]:
    return (-part(place, "priority"), part(place, "arrival"))


def _is_passed_over(place: FrozenEntry, doubt: int) -> bool:
    heard_ago: Any = part(place, "ttl") - part(place, "expires")
    return bool(heard_ago > part(place, "silence") or part(place, "seen") < doubt)


def _moved_expiry(old: FrozenEntry | None, new: FrozenEntry, call: Call) -> Iterator[str]:
    """Nothing is shortened, and what has ended (kept, revoked) isn't prolonged."""
    if old is None or old[0] != "hold" or new[0] != "hold":
        return
    was, now = part(old, "state"), part(new, "state")
    if part(old, "expires") <= 0 and now != "retained" and part(old, "token") == part(new, "token"):
        yield f"{part(new, 'id')} outlives its expiry"
    gives_up = call[0] == "release" and call[1] == part(new, "id") and was != "retained"
    if part(new, "expires") < part(old, "expires") and not gives_up:
        yield f"{part(new, 'id')} was shortened"
    if (
        was == now
        and was in ("retained", "revoked")
        and part(new, "expires") > part(old, "expires")
    ):
        yield f"{part(new, 'id')} was {was}, and is prolonged"
