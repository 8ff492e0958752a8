"""What is secret: keys as they are shown once, and the service's own secret."""

import re
import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from hmac import digest

from dibs.errors import Corrupt
from dibs.server.records.port import Conflict, Records

PREFIX = "dibs_"

KIND, NAME = "secret", "service"

_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)
_FORM = re.compile(r"dibs_([0-9a-f]{12})_[A-Za-z0-9_-]{22}", re.ASCII)


def new_key_id() -> str:
    """What a key is called in public."""
    return secrets.token_hex(6)


def new_key(key_id: str) -> str:
    """A key as its owner will bring it: its id, and 128 random bits."""
    bits = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    return f"{PREFIX}{key_id}_{bits}"


def id_of(key: str) -> str | None:
    """The id in a key; None where it has not the form of one."""
    found = _FORM.fullmatch(key)
    return found[1] if found else None


def is_key_id(text: str) -> bool:
    """Whether a key may be called so."""
    return _ID.fullmatch(text) is not None


def hashed(key: str) -> bytes:
    """What is remembered of a key. 128 random bits can't be guessed, so a fast hash is enough."""
    return sha256(key.encode()).digest()


async def service_secret(records: Records) -> bytes:
    """The service's secret, made once by whichever server is first."""
    while True:
        found = await records.get(KIND, NAME)
        if found is not None:
            if len(found.value) != 32:
                raise Corrupt("the service's secret is not 32 bytes long: nobody is let in by it")
            return found.value
        try:
            return (await records.put(KIND, NAME, secrets.token_bytes(32), 0)).value
        except Conflict:
            pass  # another server was first


def derived(secret: bytes, purpose: str) -> bytes:
    """A secret for one purpose only."""
    return digest(secret, f"dibs {purpose}".encode(), "sha256")
