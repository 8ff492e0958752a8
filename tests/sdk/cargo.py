"""The Rust SDK's crate, built by cargo."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

CRATE = Path(__file__).parents[2] / "sdk/rust"
BUILD = 1800
"""Seconds that a first build may take: it fetches and compiles all that the crate depends on."""


@cache
def cargo() -> str:
    """The program; skips the test without it, unless `CI` is set. Then the test fails."""
    found = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo/bin")
    if found is None:
        why = (
            "there is no cargo, so the Rust SDK is not tested: install Rust, for example by rustup"
        )
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found


def run_cargo(*words: str, **environment: str) -> None:
    """Run a command of cargo in the crate."""
    command = [cargo(), words[0], "--quiet", *words[1:]]
    done = subprocess.run(
        command,
        cwd=CRATE,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@cache
def built(example: str, *, release: bool = False) -> Path:
    """Build a worker of the tests or benchmarks; where it is."""
    run_cargo("build", "--example", example, *(["--release"] if release else []))
    target = os.environ.get("CARGO_TARGET_DIR", CRATE / "target")
    return Path(CRATE, target, "release" if release else "debug", "examples", example)
