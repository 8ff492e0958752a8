"""Names made from values, whoever has these."""

import pytest

from dibs import NameTemplate


def test_a_template_without_a_function_is_filled_by_name() -> None:
    template = NameTemplate("tenant:{tenant}:order:{order}")
    assert template.fields == ("tenant", "order")
    assert template.filled({"tenant": "a:b", "order": 7, "more": None}) == "tenant:a%3Ab:order:7"


def test_its_fields_are_checked_against_what_there_is() -> None:
    template = NameTemplate("order:{order}")
    template.check(["tenant", "order"], "the route")
    with pytest.raises(ValueError, match=r"names 'order', and the route has no .* \(it has: id\)"):
        template.check(["id"], "the route")


def test_one_without_fields_needs_no_values() -> None:
    assert NameTemplate("nightly").filled({}) == "nightly"
    with pytest.raises(ValueError, match="name"):
        NameTemplate("")
