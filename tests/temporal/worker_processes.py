"""`dibs temporal worker` as a process."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Self

from tests.servers.ports import free_port

LONG = 60.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""

ANY_PORT = "127.0.0.1:0"
"""Whichever is free: nobody else can take it before the worker does."""


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that names a server or a store."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DIBS_", "TEMPORAL_"))}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull, **more}


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command line, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dibs", *arguments],
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )


class WorkerProcess:
    """One that runs; ended with the block."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "temporal", "worker", "--json", *arguments],
            env=environment() if env is None else env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LONG)

    def until(self, event: str) -> str:
        """Read what it says up to an event; its message."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said = json.loads(line)  # also what Temporal's core has to say
            assert datetime.fromisoformat(said["time"]).tzinfo is not None
            self.told.append(said)
            if said["event"] == event:
                return str(said["message"])
        raise AssertionError(f"it ended with {self.process.wait(LONG)} before {event}: {self.told}")

    def until_at(self, endpoint: str) -> str:
        """Read up to where it says of an endpoint, on a port that was free, what its address is."""
        told = self.until(endpoint)
        return told.removeprefix(f"{endpoint} at http://").partition("/")[0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code."""
        self.process.communicate(timeout=LONG)
        return self.process.returncode


def fetch(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=LONG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"
