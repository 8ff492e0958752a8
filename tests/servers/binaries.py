"""Which server programs this machine has, and what to do where one is missing.

In this order: what an environment variable names (`DIBS_REDIS_SERVER`, `DIBS_TEMPORAL` and
`DIBS_BROWSER`, programs, and `DIBS_POSTGRES_BIN`, a folder), what is installed, what
`tools/servers.py` fetched to `.tools/servers/`, or installed. `make env` calls that.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".tools" / "servers"

KUBE = ROOT / "tests" / "servers" / "kube"
"""Go module of our own Kubernetes API server. It includes the newest etcd."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Names of those that the tests drive."""


class MissingServer(Exception):
    """No such program here; the text says what would bring it."""


class Program(NamedTuple):
    """A server program and the version that it says it is."""

    path: Path
    name: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        """For test ids: `redis-7.0.15`."""
        return f"{self.name}-{'.'.join(map(str, self.version))}"


def redis_program() -> Program:
    """The one that tests use unless they say otherwise: the first found that knows TLS, else the first."""
    found = redis_programs()
    if not found:
        raise MissingServer("no redis-server: install Redis 6.2 or later, or run `make env`")
    return next((program for program in found if knows_tls(program.path)), found[0])


@cache
def redis_programs() -> tuple[Program, ...]:
    """Every Redis and Valkey of another version that is here, in the order they are looked for."""
    return _distinct(_probe(path) for path in _redis_paths())


def _redis_paths() -> Iterator[Path]:
    named = os.environ.get("DIBS_REDIS_SERVER")
    if named:
        yield Path(named)
        return
    for name in ("redis-server", "valkey-server"):
        installed = shutil.which(name)
        if installed:
            yield Path(installed)
    for name in ("redis", "valkey"):
        yield from sorted(FETCHED.glob(f"{name}-*/bin/{name}-server"), reverse=True)


@cache
def knows_tls(program: Path) -> bool:
    """Give it a TLS port without a certificate: one that knows TLS complains about just that."""
    done = subprocess.run(
        [program, "-"], input=b"port 0\ntls-port 1\n", capture_output=True, check=False, timeout=30
    )
    return b"Failed to configure TLS" in done.stdout


def postgres_versions() -> tuple[str, ...]:
    """The major versions that are here, the oldest first: `("14", "15", …)`."""
    return tuple(map(str, sorted(program.version[0] for program in postgres_programs())))


def postgres_program(major: str | None = None) -> Program:
    """That version, or the first found."""
    for program in postgres_programs():
        if major in (None, str(program.version[0])):
            return program
    raise MissingServer(
        f"no PostgreSQL {major or '14 or later'}: install it, or run `make env` where npm is"
    )


@cache
def postgres_programs() -> tuple[Program, ...]:
    """Every PostgreSQL here from 14 on, one of each major version."""
    found = (_probe(folder / "postgres") for folder in _postgres_folders())
    first: dict[int, Program] = {}
    for program in found:
        if program is not None and program.version[0] >= 14:
            first.setdefault(program.version[0], program)
    return tuple(first.values())


def _postgres_folders() -> Iterator[Path]:
    named = os.environ.get("DIBS_POSTGRES_BIN")
    if named:
        yield Path(named)
        return
    installed = shutil.which("postgres")
    if installed:
        yield Path(installed).resolve().parent
    for pattern in (
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/opt/homebrew/opt/postgresql@*/bin",
    ):
        yield from sorted(Path("/").glob(pattern[1:]))
    yield from sorted(FETCHED.glob("postgres-*/bin"))


def pgbouncer_program() -> Program:
    """The PgBouncer that is here."""
    return _first("pgbouncer", where=" on Debian or Ubuntu")


def nginx_program() -> Path:
    """The nginx that is here."""
    return _first("nginx", ask="-v", where=" on Debian or Ubuntu").path


def caddy_program() -> Program:
    """The Caddy that is here."""
    return _first("caddy", ask="version", where=" on Debian or Ubuntu")


def temporal_program() -> Program:
    """The command line tool of Temporal that is here, with its server for development."""
    return _first("temporal", named=os.environ.get("DIBS_TEMPORAL"))


def etcd_program(version: str | None = None) -> Program:
    """Return the etcd of that version (`"3.4"`), or the newest here."""
    for program in reversed(etcd_programs()):
        if version is None or program.label.startswith(f"{program.name}-{version}."):
            return program
    where = " on Debian or Ubuntu" if version == "3.4" else ""
    raise MissingServer(
        f"no etcd {version or '3.4 or later'}: install it, or run `make env`{where}"
    )


def etcdctl_program() -> Program:
    """Return the command line tool of etcd that is here."""
    return _first("etcdctl", "etcd", ask="version")


@cache
def etcd_programs() -> tuple[Program, ...]:
    """Return one etcd of each version that is here, the oldest first."""
    installed = shutil.which("etcd")
    paths = [Path(installed)] if installed else []
    paths += [*sorted(FETCHED.glob("etcd-*/bin/etcd")), _kube_path()]
    found = _distinct(_probe(path) for path in paths)
    return tuple(sorted(found, key=lambda program: program.version))


def kube_program() -> Program:
    """Return the Kubernetes API server that was built from the present sources in `KUBE`."""
    program = _probe(_kube_path())
    if program is None:
        raise MissingServer("no dibs-kube: install Go 1.26 or later, then run `make env-servers`")
    return program


def kube_folder() -> str:
    """Name of the folder in `FETCHED` for builds of `KUBE`. It contains a hash of the sources."""
    total = hashlib.sha256()
    for path in sorted([*KUBE.glob("*.go"), *KUBE.glob("go.*")]):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return f"kube-{total.hexdigest()[:12]}"


def _kube_path() -> Path:
    return FETCHED / kube_folder() / "bin" / "dibs-kube"


def nats_program() -> Program:
    """Return the NATS server that is here."""
    return _first("nats-server", "nats")


def seaweedfs_program() -> Program:
    """Return the SeaweedFS that is here, an S3 server."""
    return _first("weed", "seaweedfs", ask="version")


def browser_program() -> Program:
    """The Chromium, or the browser made from it, that is here."""
    named = os.environ.get("DIBS_BROWSER")
    for path in [named] if named else map(shutil.which, BROWSERS):
        program = _probe(Path(path)) if path else None
        if program is not None:
            return program
    raise MissingServer("no chromium: install it, or run `make env` as root on Debian or Ubuntu")


def _first(
    name: str,
    fetched: str = "",
    *,
    ask: str = "--version",
    named: str | None = None,
    where: str = "",
) -> Program:
    """The program of that name that was named, is installed, or was fetched."""
    found = named or shutil.which(name) or shutil.which(name, path="/usr/sbin")
    paths = [Path(found)] if found else sorted(FETCHED.glob(f"{fetched or name}-*/bin/{name}"))
    for path in paths:
        program = _probe(path, ask)
        if program is not None:
            return program
    raise MissingServer(f"no {name}: install it, or run `make env`{where}")


@cache
def _probe(path: Path, ask: str = "--version") -> Program | None:
    """What a program says it is, or nothing if it does not run here."""
    try:
        done = subprocess.run([path, ask], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r"(?:\bv=|^v?|[( /]v?)(\d+(?:\.\d+)+)", done.stdout or done.stderr)
    if done.returncode != 0 or match is None:
        return None
    name = path.name.removesuffix("-server")
    return Program(path, name, tuple(map(int, match[1].split("."))))


def _distinct(programs: Iterator[Program | None]) -> tuple[Program, ...]:
    seen: dict[str, Program] = {}
    for program in programs:
        if program is not None:
            seen.setdefault(program.label, program)
    return tuple(seen.values())
