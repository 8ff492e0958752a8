"""Lease ids: random, used once, and drawn many at a time because a system call each would show."""

import os
from base64 import urlsafe_b64encode

BYTES = 18  # 144 bits are a whole number of base64 letters
LETTERS = 24
DRAWN = 64

_drawn: list[str] = []


def new_id() -> str:
    """An id that nobody can guess: the capability to renew and release one lease."""
    try:
        return _drawn.pop()
    except IndexError:
        text = urlsafe_b64encode(os.urandom(BYTES * DRAWN)).decode()
        fresh = [text[at : at + LETTERS] for at in range(0, len(text), LETTERS)]
        mine = fresh.pop()
        _drawn.extend(fresh)
        return mine


os.register_at_fork(after_in_child=_drawn.clear)  # ids that the parent may still use
