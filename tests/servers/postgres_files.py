"""A PostgreSQL's data folder, and whose it is.

PostgreSQL refuses to run as root. Where the tests do (a container, mostly), it runs as another user,
who keeps one right of root's: to reach files in folders that are root's alone.
"""

import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.servers.binaries import FETCHED, MissingServer, Program
from tests.servers.process import ServerFailed

USERS = ("postgres", "nobody")


def not_root(command: Sequence[str | Path]) -> list[str | Path]:
    """The command itself, or as another user where we are root."""
    user = other_user()
    if user is None:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise MissingServer("no setpriv, which runs PostgreSQL for root: install util-linux")
    return [
        setpriv,
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
        "--securebits=+no_setuid_fixup",  # else access(2), by which it finds itself, forgets it
        *command,
    ]


@cache
def other_user() -> pwd.struct_passwd | None:
    """Whom PostgreSQL runs as if we are root."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise MissingServer(f"PostgreSQL can't run as root, and there is no user {' or '.join(USERS)}")


def new_cluster(program: Program, data: Path, *, superuser: str) -> None:
    """A fresh data folder. `initdb` takes a second, so it runs once a version; then it is copied."""
    part = data.with_name(data.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(_template(program, superuser), part)
    give(part)
    part.rename(data)


def give(folder: Path) -> None:
    """Make a folder and all in it the other user's, and nobody else's, as PostgreSQL wants it."""
    folder.chmod(0o700)
    user = other_user()
    if user is not None:
        for path, _, files in os.walk(folder):
            for name in ("", *files):
                os.chown(Path(path, name), user.pw_uid, user.pw_gid)


def _template(program: Program, superuser: str) -> Path:
    """The copy to make others from, made by the first who needs it."""
    folder = FETCHED / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    template = folder / f"{program.label}-{superuser}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            _make_template(program, superuser, template)
    return template


def _make_template(program: Program, superuser: str, template: Path) -> None:
    with tempfile.TemporaryDirectory(dir=template.parent) as scratch:
        new = Path(scratch, "data")
        new.mkdir()
        give(new)
        done = subprocess.run(
            not_root(
                [
                    *(program.path.with_name("initdb"), "-D", new, "-U", superuser),
                    *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
                ]
            ),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailed(f"{program.label}'s initdb failed: {done.stdout}{done.stderr}")
        new.rename(template)
