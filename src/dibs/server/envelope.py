"""What the service keeps with a lease beside its note: where it came from, and its sealed id.

A store tells nobody a lease's id, and the servers of a service share nothing but stores. So the note
of what is acquired through it ends in a unit separator, the caller's address, a blank, and the id, encrypted
under the service's secret: an administrator may see ids, as a way out. Whatever is shown as a note ends
before the separator.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from dibs.core.names import fingerprint
from dibs.core.notes import ADDRESS, MAX_ADDRESS, SEPARATOR, shown_note

LONGEST = 64
"""Letters of an id."""


class Opened(NamedTuple):
    """What lay in an envelope."""

    note: str
    ip: str
    id: str
    """Empty where there is none, or where it was sealed under another secret."""


class Envelope:
    """Seals and opens, for one service."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret[:64]

    def sealed(self, note: str, ip: str, lease_id: str, mark: str = "") -> str:
        """A note with all of it, and with the mark of whoever is traced."""
        raw = lease_id.encode()
        hidden = self._turned(raw, fingerprint(lease_id))
        last = f" {mark}" if mark else ""
        address = _clean(ip[: MAX_ADDRESS + 1])  # enough to see that it is longer
        return f"{note}{SEPARATOR}{address} {urlsafe_b64encode(hidden).decode()}{last}"

    def opened(self, note: str, lease: str) -> Opened:
        """What was sealed with the lease of that fingerprint."""
        plain = shown_note(note)
        ip, _, rest = note[len(plain) + 1 :].partition(" ")
        hidden = rest.partition(" ")[0]
        lease_id = ""
        if hidden:
            try:
                found = self._turned(urlsafe_b64decode(hidden), lease).decode("ascii")
                lease_id = found if fingerprint(found) == lease else ""
            except ValueError:
                pass  # somebody wrote it who is not the service
        return Opened(plain, ip, lease_id)

    def _turned(self, raw: bytes, lease: str) -> bytes:
        """Encrypted, or decrypted: each lease has a key stream of its own, that is used once."""
        raw = raw[:LONGEST]
        stream = blake2b(lease.encode(), key=self._secret, digest_size=LONGEST).digest()
        length = len(raw)
        mixed = int.from_bytes(raw) ^ int.from_bytes(stream[:length])
        return mixed.to_bytes(length)


@lru_cache(maxsize=1024)  # each client asks many times
def _clean(ip: str) -> str:
    """An address, without its zone if that is long or has other letters; empty for what a proxy says else."""
    for each in (ip, ip.partition("%")[0]):
        if re.fullmatch(ADDRESS, each):
            return each
    return ""
