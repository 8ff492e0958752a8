"""The texts of API keys, the secret with which the service signs, and short-lived tokens."""

import os
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from math import inf
from pathlib import Path
from time import time
from typing import Any

import msgspec
from itsdangerous import BadData, URLSafeSerializer

from dibs.clock import Clock
from dibs.errors import NotConfigured

PREFIX = "dibs_"

SHORTEST = 32
"""Characters of a service's secret, at least."""

MOST_OLD = 2
"""Secrets that stay in the file beside the newest and the one before it."""

_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)


def new_key_id() -> str:
    """A random id, by which a key is named in public."""
    return secrets.token_hex(6)


def new_key(key_id: str) -> str:
    """The text of a key, which its owner sends: its id, and 128 random bits."""
    bits = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
    return f"{PREFIX}{key_id}_{bits}"


def id_of(key: str) -> str:
    """The id in the text of a key. The text is not checked: only the hash shows whether it is a key."""
    return key[len(PREFIX) : len(PREFIX) + 12]


def is_key_id(text: str) -> bool:
    """Whether it has the form of a key's id."""
    return _ID.fullmatch(text) is not None


def hashed(key: str) -> bytes:
    """The stored hash of a key. Nobody can guess 128 random bits, so a fast hash is enough."""
    return sha256(key.encode()).digest()


class ServiceSecret:
    """The secrets that sign tokens and sessions. The newest signs; older ones are accepted for a while.

    A file has a line for each: `SECRET`, or `SECRET UNTIL` (seconds since 1970) for one that was replaced.
    It is read again when it has changed. Secrets are never in the records, so a reader of the records, or
    of a backup, can sign nothing.
    """

    def __init__(self, given: Sequence[str] = (), path: Path | None = None) -> None:
        self._path = path
        self._given = tuple(_checked(each) for each in given)
        self._stamp: tuple[int, int] | None = None
        self._lines: list[tuple[bytes, float]] = []
        if path is not None and not self._given:
            _make(path)
            self.accepted()  # raises if the file cannot be read
        elif not self._given:
            self._given = (secrets.token_bytes(32),)

    def accepted(self) -> tuple[bytes, ...]:
        """The accepted secrets, newest first. Raises `NotConfigured` for a file without any."""
        if self._given or self._path is None:
            return self._given
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._stamp:
                self._lines = _read(self._path.read_text("ascii"))
                self._stamp = found.st_mtime_ns, found.st_ino
        except (OSError, ValueError, NotConfigured) as error:
            if not self._lines:
                raise NotConfigured(f"{self._path} holds no secrets: {error}") from error
            return tuple(secret for secret, _ in self._lines)  # it is being written
        now = time()
        return tuple(secret for secret, until in self._lines if until > now)

    @property
    def newest(self) -> bytes:
        """The secret that signs."""
        return self.accepted()[0]

    def rotate(self, accepted_for: float) -> None:
        """Sign with a new secret from now on, and accept the present one for so many seconds.

        Raises `NotConfigured` if the secret is in no file.
        """
        path = self._path
        if path is None or self._given:
            raise NotConfigured(
                "no file keeps this service's secret. Put a new one first, at every server, and restart "
                f"them one after the other: DIBS_SERVER_SECRET={secrets.token_hex(32)},OLD. Take the old "
                "one away a minute later"
            )
        until = int(time() + accepted_for)
        newest, *older = path.read_text("ascii").splitlines()
        _write(path, [secrets.token_hex(32), f"{newest} {until}", *older[:MOST_OLD]])


def _checked(text: str) -> bytes:
    if len(text) < SHORTEST:
        raise NotConfigured(
            f"the secret of the service is {SHORTEST} characters or more: take random ones"
        )
    return sha256(text.encode()).digest()


def _read(text: str) -> list[tuple[bytes, float]]:
    """Secrets, and until when each is accepted. Raises `ValueError`."""
    found: list[tuple[bytes, float]] = []
    for line in text.splitlines():
        secret, _, until = line.strip().partition(" ")
        if secret:
            found.append((_checked(secret), float(until or "inf")))
    if not found or found[0][1] != inf:
        raise ValueError("its first line is a secret")
    return found


def _make(path: Path) -> None:
    """Make the file with a first secret, if it is missing. Raises `NotConfigured`."""
    if not path.exists():
        with suppress(FileExistsError):  # another server is making it
            _write(path, [secrets.token_hex(32)], new=True)


def _write(path: Path, lines: Sequence[str], *, new: bool = False) -> None:
    """Replace the file at once, with mode 0600."""
    unnamed = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
        if new:
            os.link(unnamed, path)
        else:
            unnamed.replace(path)
    except FileExistsError:
        raise
    except OSError as error:
        raise NotConfigured(
            f"{path}, for the secret of the service, can't be written ({error.strerror}): name another "
            "file with DIBS_SERVER_SECRET_FILE, or set DIBS_SERVER_SECRET"
        ) from error
    finally:
        unnamed.unlink(missing_ok=True)


# ---- what the service signs -----------------------------------------------------------------------

TOKEN_LIFETIME = 60
"""Seconds for which a token is valid."""

TOKEN_LEEWAY = 5
"""Seconds by which the clocks of servers may differ."""

REMEMBERED = 4096
"""Tokens whose signature was verified, and that are known by their hash: verifying costs about 20 µs."""


class Signatures:
    """Signs values for one purpose, and reads what any server of the service has signed.

    The purpose is the salt: a text that is signed for one purpose is invalid for all others.
    """

    def __init__(self, secret: ServiceSecret, purpose: str) -> None:
        self._secret = secret
        self._salt = f"dibs {purpose}"

    def sign(self, value: Any) -> str:
        """The value and its signature, for a URL, a header or a cookie."""
        return self._serializer().dumps(value)

    def read[T](self, text: str, kind: type[T]) -> T | None:
        """The value that was signed; None if the signature is invalid."""
        try:
            return msgspec.convert(self._serializer().loads(text), kind)
        except (BadData, ValueError):  # a text may contain what UTF-8 cannot encode
            return None

    def _serializer(self) -> URLSafeSerializer:
        return URLSafeSerializer(
            self._secret.accepted()[::-1],  # the oldest first: the last one signs
            salt=self._salt,
            signer_kwargs={"key_derivation": "hmac", "digest_method": sha256},
        )


class Tokens:
    """Short-lived bearer tokens, to be sent instead of a key. Each is bound to a key, and ends with it."""

    def __init__(self, secret: ServiceSecret, clock: Clock) -> None:
        self._signatures = Signatures(secret, "token")
        self._clock = clock
        self._verified: dict[bytes, tuple[str, int]] = {}

    def issue(self, key_id: str) -> str:
        """A token for the owner of that key."""
        return self._signatures.sign((key_id, int(self._now()) + TOKEN_LIFETIME))

    def key_of(self, token: str) -> tuple[str, bool] | None:
        """The key that a token is bound to, and whether it is still valid; None if no server signed it."""
        found = self._read(token)
        if found is None:
            return None
        key_id, expires = found
        left = expires - self._now()
        return key_id, -TOKEN_LEEWAY < left <= TOKEN_LIFETIME + TOKEN_LEEWAY

    def end_of(self, token: str) -> float | None:
        """Until when a token is accepted, in seconds since 1970; None if no server signed it."""
        found = self._read(token)
        return None if found is None else found[1] + TOKEN_LEEWAY

    def _read(self, token: str) -> tuple[str, int] | None:
        """The key and the expiry in a token; None if no server signed it."""
        digest = sha256(token.encode()).digest()
        found = self._verified.get(digest) or self._signatures.read(token, tuple[str, int])
        if found is None:
            return None
        if len(self._verified) >= REMEMBERED:
            self._verified.clear()
        self._verified[digest] = found
        return found

    def _now(self) -> float:
        return self._clock.stamp() / 1e6
