"""The command line as its users have it: processes, or `main` in the test where no process matters."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs.sync
from tests.cli.processes import Cli, Main


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs `dibs` as processes; those that still run are killed afterwards."""
    with Cli(tmp_path) as cli:
        yield cli


@pytest.fixture
def verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Main]:
    """Runs `dibs` in this process, on a file of the test's own."""
    monkeypatch.setenv("DIBS_URL", Cli(tmp_path).url)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGTTOU)}
    yield Main(capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[dibs.sync.Client]:
    """A client of the store that `verb` and `cli` use."""
    with dibs.sync.connect(Cli(tmp_path).url) as client:
        yield client
