"""One view of what lies at several places."""

from collections.abc import Sequence
from dataclasses import replace

from dibs.model import Page, Status


def merged(found: Sequence[Status]) -> Status:
    """One key, as several places have it; who waits at the first comes first."""
    first = found[0]
    if len(found) == 1:
        return first
    return replace(
        first,
        capacity=next((each.capacity for each in found if each.capacity), 0),
        holders=tuple(sorted((h for each in found for h in each.holders), key=lambda h: h.token)),
        waiters=tuple(waiter for each in found for waiter in each.waiters),
        waiting=sum(each.waiting for each in found),
        last_token=max(each.last_token for each in found),
    )


def one_page(pages: Sequence[Page], limit: int) -> Page:
    """The next keys of several places' pages, each key once; all pages began behind the same one."""
    ends = [page.cursor for page in pages if page.cursor is not None]
    known_to = min(ends) if ends else None
    by_key: dict[bytes, list[Status]] = {}
    for page in pages:
        for status in page.items:
            if known_to is None or status.key <= known_to:
                by_key.setdefault(status.key, []).append(status)
    items = [merged(by_key[key]) for key in sorted(by_key)]
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].key)
    return Page(items, known_to)
