"""Here nothing is set, whatever the machine and the tests before have set."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import client, settings

type Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("KUBERNETES_SERVICE_HOST", *os.environ):
        if name.startswith(("DIBS_", "KUBERNETES_")):
            monkeypatch.delenv(name, raising=False)
    by_settings: dict[Any, Any] = {}
    monkeypatch.setattr(client, "_defaults", ())
    monkeypatch.setattr(client, "_by_settings", by_settings)
    monkeypatch.setattr(settings, "_files", {})
    monkeypatch.setattr(settings, "_users", {})
    yield
    for session in by_settings.values():
        session.close()


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Write a settings file, and have the environment name it."""

    def written(text: str) -> Path:
        path = tmp_path / f"dibs-{len(list(tmp_path.iterdir()))}.toml"
        path.write_text(text, "utf-8")
        monkeypatch.setenv("DIBS_CONFIG", str(path))
        return path

    return written
