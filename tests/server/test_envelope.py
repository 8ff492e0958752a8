"""What is kept with a lease beside its note."""

from sys import getrefcount

import pytest

from dibs.core.names import fingerprint
from dibs.core.notes import mark_in, shown_note
from dibs.server.envelope import Envelope

ID, MARK = "an-id-of-enough-letters-", "m" * 32


@pytest.mark.parametrize(
    ("ip", "kept"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::1%br-lan", "fe80::1"),
        ("a_b", ""),
        ("a b\x1f", ""),
        ("192.0.2.7\n", ""),
        ("9" * 64, "9" * 64),
        ("9" * 65, ""),
        ("fe80::1%" + "e" * 65, "fe80::1"),
        ("9" * 65 + "%eth0", ""),
        ("", ""),
    ],
)
def test_whatever_a_proxy_says_people_see_the_note_only(ip: str, kept: str) -> None:
    envelope = Envelope(b"a secret")
    sealed = envelope.sealed("hello", ip, ID, MARK)
    assert shown_note(sealed) == "hello"
    assert envelope.opened(sealed, fingerprint(ID)) == ("hello", kept, ID)
    assert mark_in(sealed) == MARK


def test_what_a_proxy_says_at_length_is_not_kept() -> None:
    said = "9" * (32 << 10)
    holders = getrefcount(said)
    assert len(Envelope(b"a secret").sealed("hello", said, ID)) < 100
    assert getrefcount(said) == holders
