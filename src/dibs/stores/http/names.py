"""Names and keys as the service spells them: `base64:` and the bytes in URL-safe base64 without padding."""

from binascii import a2b_base64, b2a_base64

MARK = "base64:"

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PLAIN = bytes.maketrans(b"-_+/=", b"+/!!!")
"""What URL-safe base64 does not contain becomes invalid."""


def encoded(raw: bytes) -> str:
    """Bytes in URL-safe base64 without padding (RFC 4648, section 5)."""
    return b2a_base64(raw, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """Decode what `encoded` returns. Raises `ValueError` for anything else.

    Each name has one spelling: padding, other alphabets and unused bits are refused, so that no two
    addresses are one lock.
    """
    plain = text.encode("ascii").translate(_PLAIN) + b"=" * (-len(text) % 4)
    raw = a2b_base64(plain)
    if b2a_base64(raw, newline=False) != plain:
        raise ValueError("not URL-safe base64 without padding")
    return raw
