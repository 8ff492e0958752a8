"""A session as it travels: what it is, and a seal by which any server of the service knows its own."""

import re
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hmac import compare_digest, digest

from dibs.server.auth.credentials import derived

_FORM = re.compile(
    r"([0-9a-f]{12})\.(\d{1,12})\.([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{43})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who has signed in: by which key, and until when, in seconds since 1970."""

    key_id: str
    expires_at: int
    nonce: str
    """Makes it this one, and nobody guesses it."""

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.key_id}.{self.expires_at}.{self.nonce}"


def new_session(key_id: str, expires_at: int) -> Session:
    """Another one."""
    return Session(key_id, expires_at, _letters(secrets.token_bytes(16)))


class Seal:
    """Seals and opens, for one service."""

    def __init__(self, secret: bytes) -> None:
        self._sealing = derived(secret, "sessions")
        self._guarding = derived(secret, "csrf tokens")

    def sealed(self, session: Session) -> str:
        """A session as its cookie has it."""
        return f"{session.text}.{self._mark(session)}"

    def opened(self, text: str) -> Session | None:
        """The session, also one that is over; None for what no server of the service has sealed."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        key_id, expires_at, nonce, mark = found.groups()
        session = Session(key_id, int(expires_at), nonce)
        is_ours = (
            compare_digest(mark, self._mark(session)) and session.text == text[: -len(mark) - 1]
        )
        return session if is_ours else None

    def token(self, session: Session) -> str:
        """What its page knows, and no other page: to be brought with whatever changes something."""
        return _letters(digest(self._guarding, session.text.encode(), "sha256"))

    def _mark(self, session: Session) -> str:
        return _letters(digest(self._sealing, session.text.encode(), "sha256"))


def _letters(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
