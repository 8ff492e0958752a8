"""A key as it lies in the records: all about it but the key itself."""

from dataclasses import dataclass, replace

import msgspec

from dibs.server.principal import Principal, Scope
from dibs.server.records.port import Record
from dibs.server.scopes import reduced, with_implied
from dibs.stores.http.names import decoded, encoded

KIND = "key"

FORMAT = 1


class _Document(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The JSON of a key."""

    format: int
    name: str
    scopes: list[Scope]
    prefixes: list[str]
    digest: str
    created: float
    by: str = ""
    expires: float | None = None
    revoked: float | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, as the service knows it. Times are seconds since 1970."""

    principal: Principal
    digest: bytes
    """The hash of what its owner brings."""
    created: float
    by: str
    """Who made it, for people."""
    expires: float | None
    revoked: float | None = None
    version: int = 0
    """Of its record."""

    @property
    def id(self) -> str:
        """What it is called in public."""
        return self.principal.key_id

    def ended(self, now: float) -> str:
        """Why it is good for nothing any more: `revoked` or `expired`; empty while it is."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else ""

    def ended_since(self, now: float) -> float:
        """For how many seconds that has been so."""
        ends = [end for end in (self.revoked, self.expires) if end is not None]
        return now - min(ends, default=now)

    def as_revoked(self, now: float) -> "Key":
        """The same key, revoked."""
        return replace(self, revoked=now)


def to_bytes(key: Key) -> bytes:
    """What is put into the records."""
    document = _Document(
        format=FORMAT,
        name=key.principal.name,
        scopes=sorted(key.principal.scopes),
        prefixes=[encoded(prefix) for prefix in key.principal.prefixes],
        digest=key.digest.hex(),
        created=key.created,
        by=key.by,
        expires=key.expires,
        revoked=key.revoked,
    )
    return msgspec.json.encode(document)


def from_record(record: Record) -> Key:
    """The way back. Raises `ValueError` for what is no key, or one that a newer release has written."""
    try:
        document = msgspec.json.decode(record.value, type=_Document)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if document.format != FORMAT:
        raise ValueError(f"it has format {document.format}, and this release reads {FORMAT}")
    prefixes = [decoded(text) for text in document.prefixes]
    digest = bytes.fromhex(document.digest)
    if not prefixes or len(digest) != 32 or any(p and not p.endswith(b"/") for p in prefixes):
        raise ValueError("it is no whole key")
    principal = Principal(
        record.name, document.name, with_implied(document.scopes), reduced(prefixes)
    )
    return Key(
        principal,
        digest,
        document.created,
        document.by,
        document.expires,
        document.revoked,
        record.version,
    )
