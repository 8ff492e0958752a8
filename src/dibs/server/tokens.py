"""Short-lived bearer tokens: what a key can be exchanged for, so that the key itself travels rarely."""

from collections.abc import Callable, Sequence
from hashlib import sha256

import jwt
from jwt.types import Options

from dibs.clock import Clock
from dibs.server.auth.credentials import derived

LIFETIME = 60
"""Seconds that a token is good for."""

LEEWAY = 5
"""By so many seconds servers' clocks may differ."""

REMEMBERED = 4096
"""So many tokens are known by their hash, which costs less than to verify them again."""

_ISSUER, _ALGORITHM = "dibs", "HS256"


class Tokens:
    """JSON Web Tokens, signed with the service's newest secret and bound to a key: they end with it."""

    def __init__(self, secrets: Callable[[], Sequence[bytes]], clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock
        self._verified: dict[bytes, tuple[str, float]] = {}

    def issue(self, key_id: str) -> str:
        """A token for the owner of that key."""
        now = self._now()
        claims = {"iss": _ISSUER, "sub": key_id, "iat": int(now), "exp": int(now) + LIFETIME}
        return jwt.encode(claims, self._keys()[0], _ALGORITHM)

    def key_of(self, token: str) -> tuple[str, bool] | None:
        """The key that a token is bound to, and whether it is still good; None for no token of ours."""
        digest = sha256(token.encode()).digest()
        found = self._verified.get(digest) or self._verify(token)
        if found is None:
            return None
        if len(self._verified) >= REMEMBERED:
            self._verified.clear()
        self._verified[digest] = found
        key_id, expires = found
        return key_id, self._now() < expires + LEEWAY

    def _keys(self) -> list[bytes]:
        return [derived(each, "tokens") for each in self._secrets()]

    def _verify(self, token: str) -> tuple[str, float] | None:
        """The key and the end of a token of ours, which never lives longer than `LIFETIME`."""
        need = ["sub", "iat", "exp"]
        options: Options = {"require": need, "verify_exp": False, "verify_iat": False}
        for key in self._keys():
            try:
                claims = jwt.decode(token, key, [_ALGORITHM], options=options, issuer=_ISSUER)
                begin, end = float(claims["iat"]), float(claims["exp"])
                if end - begin <= LIFETIME and begin <= self._now() + LEEWAY:
                    return str(claims["sub"]), end
            except (jwt.InvalidTokenError, ValueError, TypeError):
                continue
        return None

    def _now(self) -> float:
        return self._clock.stamp() / 1e6
