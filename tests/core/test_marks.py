"""A span's mark behind a note: found again, and never shown."""

from hypothesis import given
from hypothesis import strategies as st

from dibs.core.marks import LENGTH, mark_of, span_of
from dibs.core.names import fingerprint
from dibs.core.notes import mark_in, marked, shown_note, unmarked
from dibs.server.envelope import Envelope

TRACES = st.integers(1, 2**128 - 1)
SPANS = st.integers(1, 2**64 - 1)
NOTES = st.text() | st.just("mine\x1f192.0.2.1 AAAA")


@given(TRACES, SPANS, NOTES)
def test_a_mark_is_found_again(trace: int, span: int, note: str) -> None:
    mark = mark_of(trace, span)
    assert len(mark) == LENGTH
    told = marked(note, mark)
    assert span_of(mark_in(told)) == (trace, span)
    assert (shown_note(told), unmarked(told)) == (note, (note, mark))


@given(TRACES, SPANS, NOTES)
def test_one_behind_a_seal_too(trace: int, span: int, note: str) -> None:
    mark = mark_of(trace, span)
    envelope, lease = Envelope(b"secret"), "l" * 22
    sealed = envelope.sealed(note, "2001:db8::1", lease, mark)
    assert (shown_note(sealed), mark_in(sealed)) == (note, mark)
    assert envelope.opened(sealed, fingerprint(lease)) == (note, "2001:db8::1", lease)
    assert unmarked(sealed) == (sealed, ""), "it is the service's"
    assert envelope.sealed(note, "2001:db8::1", lease) == sealed.removesuffix(f" {mark}")


@given(st.text())
def test_other_notes_have_none(note: str) -> None:
    assert mark_in(note) == ""
    assert unmarked(note) == (note, "")
