"""Names and keys as the service spells them: `base64:` and the bytes in URL-safe base64 without padding."""

from base64 import urlsafe_b64encode
from binascii import a2b_base64

MARK = "base64:"

_PLAIN = bytes.maketrans(b"-_", b"+/")


def encoded(raw: bytes) -> str:
    """Bytes in URL-safe base64 without padding (RFC 4648, section 5)."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """Decode what `encoded` returns. Raises `ValueError` for anything else.

    Each name has one spelling: padding, other alphabets and unused bits are refused, so that no two
    addresses are one lock.
    """
    raw = a2b_base64(text.encode("ascii").translate(_PLAIN) + b"=" * (-len(text) % 4))
    if encoded(raw) != text:
        raise ValueError("not URL-safe base64 without padding")
    return raw
