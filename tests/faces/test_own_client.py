"""`connect(client=…)`: the store that a program's own client is connected to."""

from typing import Any

import pytest

import dibs
import dibs.sync


@pytest.mark.parametrize("module", [dibs, dibs.sync])
def test_what_is_no_client_is_told(module: Any) -> None:
    with pytest.raises(dibs.NotConfigured, match=r"client= is a builtins\.dict.*temporalio"):
        module.connect(client={})
    with pytest.raises(TypeError, match="a URL and client="):
        module.connect("memory://", client=object())
    with pytest.raises(TypeError, match="given dict: give the URL of a store"):
        module.connect({"password": "secret"})
