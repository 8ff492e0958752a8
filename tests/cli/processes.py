"""Running `dibs`, as a process or within the test, and looking at what it started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

import dibs.sync
from dibs.cli import main
from dibs.model import Status

DIBS = [sys.executable, "-m", "dibs"]
PYTHON = [sys.executable, "-S", "-E", "-u", "-c"]
LONG = 60.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Main:
    """Runs command lines in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Done:
        self._capsys.readouterr()
        code = main(list(words))
        return Done(code, *self._capsys.readouterr())


class Cli:
    """One store, and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unwanted = ("LEASE_", "DIBS_", "PYTHONUNBUFFERED")  # unbuffered, a line is two writes
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        self.url = f"sqlite:///{folder / 'leases.db'}"
        self._started: list[subprocess.Popen[str]] = []
        self._groups: list[int] = []

    @property
    def url(self) -> str:
        return self.environment["DIBS_URL"]

    @url.setter
    def url(self, url: str) -> None:
        self.environment["DIBS_URL"] = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def __call__(
        self, *args: str | bytes, typed: str = "", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, stdin=subprocess.PIPE, **options)
        out, err = process.communicate(typed, LONG)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def start(
        self, *args: str | bytes | Path, program: Sequence[str | Path] = DIBS, **options: Any
    ) -> "subprocess.Popen[str]":
        """Start `dibs` with these words, or what runs it in another way."""
        process = subprocess.Popen(
            [*program, *args],
            env=options.pop("env", self.environment),
            text=True,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            **options,
        )
        self._started.append(process)
        return process

    def hold(self, name: str | bytes, *options: str, **more: Any) -> "subprocess.Popen[str]":
        """Hold a name until its stdin is closed; returns once it is held."""
        more.setdefault("stdin", subprocess.PIPE)
        holder = self.start("run", name, *options, "--", "sh", "-c", "echo held; read x", **more)
        assert line(holder) == "held"
        return holder

    def status(self, name: str) -> Status:
        """The status of a lock."""
        with dibs.sync.connect(self.url) as client:
            return client.status(name)

    def adopt_group(self, member: int) -> None:
        """Kill this process's group too in the end."""
        group = os.getpgid(member)
        assert os.getsid(member) == os.getsid(0), "it is none that we started"
        assert group not in (os.getpgrp(), os.getsid(0))
        self._groups.append(group)

    def kill_all(self) -> None:
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=LONG)


def line(process: "subprocess.Popen[str]", stream: str = "stdout") -> str:
    return str(getattr(process, stream).readline()).rstrip("\n")


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its exit code and the rest of its output, once it has ended."""
    out, err = process.communicate(timeout=LONG)
    return process.returncode, out, err


def state(pid: int) -> str:
    """The letter of a process's state in /proc; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be buried doesn't."""
    return state(pid) not in ("", "Z", "X")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
