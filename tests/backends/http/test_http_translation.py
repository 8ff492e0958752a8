"""What a client says arrives at the store as it was said, and so does the answer, in either format."""

import dataclasses
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import model
from dibs.backends.http import translation, wire
from dibs.backends.http.names import decoded, encoded

COMMANDS = get_args(model.Command.__value__)
REPLIES = get_args(model.Reply.__value__)
FORMATS: tuple[Any, ...] = (msgspec.json, msgspec.msgpack)

UNSENT = {"mine", "address"}
"""Fields that stay where they are: the service sets the address itself, and shows nobody a holder's trace."""

OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=40),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(-(2**31), 2**63 - 1),
    tuple[int, ...]: st.lists(st.integers(0, 100), max_size=3).map(tuple),
}


def sent(kind: type) -> list[dataclasses.Field[Any]]:
    unsent = UNSENT | ({"trace"} if kind in (model.Holder, model.Waiter) else set())
    return [each for each in dataclasses.fields(kind) if each.name not in unsent]


def of(kind: type) -> st.SearchStrategy[Any]:
    """A record with any values; of the fields that have a default, some are left at it."""
    hints = get_type_hints(kind)
    fields = {each.name: each for each in sent(kind)}
    required = {
        name: of_type(hints[name])
        for name, each in fields.items()
        if each.default is dataclasses.MISSING
    }
    optional = {name: of_type(hints[name]) for name in fields if name not in required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    if hint == tuple[model.Holder, ...]:
        return st.lists(of(model.Holder), max_size=2).map(tuple)
    if hint == tuple[model.Waiter, ...]:
        return st.lists(of(model.Waiter), max_size=2).map(tuple)
    return st.from_type(hint)


@given(st.lists(st.one_of(*map(of, COMMANDS)), max_size=4))
def test_commands_arrive_as_they_were_said(commands: list[model.Command]) -> None:
    said = wire.Batch(tuple(map(translation.to_wire, commands)))
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.Batch)
        assert [translation.to_model(op) for op in heard.commands] == commands


@given(st.lists(st.one_of(*map(of, REPLIES)), max_size=4))
def test_replies_arrive_as_they_were_given(replies: list[model.Reply]) -> None:
    said = wire.BatchAnswer(tuple(map(translation.reply_to_wire, replies)))
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.BatchAnswer)
        assert [translation.reply_to_model(each) for each in heard.replies] == replies


@given(of(model.Wakeup))
def test_pushes_arrive_as_they_were_sent(push: model.Wakeup) -> None:
    said = translation.push_to_wire(push)
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.Push)
        assert translation.push_to_model(heard, push.inbox) == push


@pytest.mark.parametrize("kind", [*COMMANDS, *REPLIES, model.Holder, model.Waiter])
def test_a_field_means_the_same_at_both_ends(kind: type) -> None:
    """The same names in the same order, and what is left out has the same value."""
    spoken = msgspec.structs.fields(getattr(wire, kind.__name__))

    def default(of: Any, nothing: object) -> object:
        return "required" if of.default is nothing else of.default

    assert [(each.name, default(each, msgspec.NODEFAULT)) for each in spoken] == [
        (each.name, default(each, dataclasses.MISSING)) for each in sent(kind)
    ]


def test_what_only_a_client_knows_is_not_sent() -> None:
    mine = model.Holder("", "me", 1, 1, (), 0.0, 1.0)
    told = model.Status(b"lock:a", 1, (mine,), mine=(mine,))
    assert translation.status_to_model(translation.status_to_wire(told)).mine == ()


@pytest.mark.parametrize("key", ["bG9jazphYg==", "bG9jazphYh", "b+9j", "b/9j", "é", "b", "a b="])
def test_a_key_has_one_spelling(key: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever it stumbles over
        translation.to_model(wire.Inspect(key))


@given(st.binary())
def test_a_spelling_has_one_key(raw: bytes) -> None:
    assert decoded(encoded(raw)) == raw
