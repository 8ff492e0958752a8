"""What people are told: who holds it, since when, what to do next."""

from dibs.core.names import printable, shown, split_key
from dibs.model import Holder


def key_shown(key: bytes) -> str:
    """A key as people know it: its name, and its kind where it isn't a lock."""
    kind, name = split_key(key)
    return shown(name) if kind == "lock" else f"{kind} {shown(name)}"


def span(duration: float) -> str:
    """A duration, no more exact than helps."""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.0f} h"


def holder_shown(holder: Holder) -> str:
    """One holder, in a sentence's middle."""
    if holder.state == "kept":
        return f"retained after its last hold, free in {span(holder.expires_in)}"
    note = f" ({printable(holder.note)})" if holder.note else ""
    return (
        f"held by {printable(holder.owner)}{note} for {span(holder.held_for)} "
        f"(token {holder.token}, expires in {span(max(holder.expires_in, 0.0))})"
    )


def contention(key: bytes, holders: tuple[Holder, ...], ahead: int | None) -> str:
    """Who is in the way of a key."""
    name = key_shown(key)
    if not holders:
        told = f"{name} was not to be had"
    elif len(holders) == 1:
        told = f"{name} is {holder_shown(holders[0])}"
    else:
        told = f"{name} is taken by {len(holders)} holders: " + "; ".join(
            holder_shown(holder) for holder in holders
        )
    if ahead:
        told += f"; {ahead} {'is' if ahead == 1 else 'are'} ahead of you"
    return told
