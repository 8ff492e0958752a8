#!/usr/bin/env python3
"""Sets up a development environment from nothing but git, make and some Python (3.8 or later).

    tools/bootstrap.py                                   .venv, on Python 3.12 if there is one
    tools/bootstrap.py --python 3.13 --env .venv-3.13    one more, to test on
    tools/bootstrap.py --bench                           with the peers of the benchmarks
    tools/bootstrap.py --servers                         and the servers that the tests run
    tools/bootstrap.py --list                            which interpreters were found
    tools/bootstrap.py --lock [--upgrade]                requirements/*.in to *.txt

It finds an interpreter that really runs (a version manager's shim may not), fetches the pinned uv
with pip into .tools/, makes the environment, installs the pinned requirements and, editable, this
project; with --servers, tools/servers.py then fetches those servers. Everything fetched is checked
against a hash. Run again, it does nothing unless something changed; after an interrupted run it
starts the environment afresh.
"""

import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
TOOLS = ROOT / ".tools"
OLDEST = (3, 12)  # the oldest Python that the project runs on, and the one that is preferred
STAMP = "bootstrap.json"  # in an environment: what it was built from; written last

PROBE = """
import json, platform, sys, sysconfig
missing = []
for name in ("ssl", "sqlite3", "venv", "ctypes", "zlib"):
    try:
        __import__(name)
    except ImportError:
        missing.append(name)
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "final": sys.version_info[3] == "final",
    "implementation": platform.python_implementation(),
    "threads": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "path": getattr(sys, "_base_executable", None) or sys.executable,
    "missing": missing,
}))
"""


class Problem(Exception):
    """Something the person must see to; its text is all that is shown."""


class NoPython(Problem):
    """No interpreter of the version asked for."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# -- interpreters ---------------------------------------------------------------------------------


def candidates():
    """Paths that may be a suitable Python, the likeliest first. Some won't run."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield from versioned(folder)
            yield from (os.path.join(folder, name) for name in ("python3", "python"))
    for pattern in folders():
        for folder in sorted(glob.glob(pattern), key=numbers, reverse=True):
            yield from versioned(folder)
    yield sys.executable


def folders():
    """Where interpreters lie that need not be on PATH, as glob patterns."""
    home = os.path.expanduser("~")
    env = os.environ.get
    data = env("XDG_DATA_HOME") or home + "/.local/share"
    for manager in (env("PYENV_ROOT"), home + "/.pyenv"):
        if manager:
            yield manager + "/versions/*/bin"
    yield (env("ASDF_DATA_DIR") or home + "/.asdf") + "/installs/python/*/bin"
    yield (env("MISE_DATA_DIR") or data + "/mise") + "/installs/python/*/bin"
    yield (env("UV_PYTHON_INSTALL_DIR") or data + "/uv/python") + "/*/bin"
    yield home + "/.rye/py/*/bin"
    for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda"):
        yield f"{home}/{name}/bin"
        yield f"{home}/{name}/envs/*/bin"
    if env("CONDA_PREFIX"):
        yield env("CONDA_PREFIX") + "/bin"
    yield from ("/opt/conda/bin", "/opt/conda/envs/*/bin")
    yield from (home + "/.local/bin", "/usr/bin", "/usr/local/bin", "/opt/python*/bin")
    yield from ("/opt/python/*/bin", "/usr/local/python*/bin", "/snap/bin")
    for brew in ("/opt/homebrew", "/usr/local"):
        yield brew + "/bin"
        yield brew + "/opt/python@3.*/bin"
    yield "/Library/Frameworks/Python.framework/Versions/3.*/bin"


def versioned(folder):
    """The python3.N of a folder that are new enough, by their names."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), "python3.*")):
        match = re.fullmatch(r"python(3)\.(\d+)", os.path.basename(path))
        if match and (int(match[1]), int(match[2])) >= OLDEST:
            found.append((int(match[2]), path))
    return [path for _, path in sorted(found)]


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text)]


def probe(path):
    """Run it: what it is, or a text that says why it won't do."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({type(error).__name__})"
    try:
        facts = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"does not run (exit {done.returncode}{': ' + lines[0] if lines else ''})"
    version = ".".join(map(str, facts["version"]))
    if tuple(facts["version"][:2]) < OLDEST:
        return f"is {version}"
    if facts["implementation"] != "CPython":
        return f"is {facts['implementation']} {version}, not CPython"
    if facts["threads"]:
        return f"is a free-threaded {version}, not yet supported"
    if facts["missing"]:
        return f"is {version} built without {', '.join(facts['missing'])}"
    return facts


def interpreters(wanted=None):
    """Every interpreter that runs, each once, and the texts about all that did not do.

    With `wanted`, the search ends at the first of that version.
    """
    found, refused, seen = [], [], set()
    for path in candidates():
        real = os.path.realpath(path)
        # A shim may stand for many interpreters: the name decides which, so it is kept apart.
        mark = real if re.fullmatch(r"python\d?(\.\d+)?", os.path.basename(real)) else path
        if mark in seen or not os.access(path, os.X_OK) or os.path.isdir(path):
            continue
        seen.add(mark)
        facts = probe(path)
        if isinstance(facts, str):
            refused.append(f"{path} {facts}")
        elif all(facts["path"] != other["path"] for other in found):
            found.append(facts)
            if facts["final"] and tuple(facts["version"][:2]) == wanted:
                break
    return found, refused


def choose(request):
    """The interpreter for a `--python` of `3.13`, of a path, or of nothing."""
    if request and os.sep in request:
        facts = probe(request)
        if isinstance(facts, str):
            raise Problem(f"{request} {facts}.")
        return facts
    exact = parse(request) if request else None
    found, refused = interpreters(wanted=exact or OLDEST)
    fit = [f for f in found if exact is None or tuple(f["version"][:2]) == exact]
    if fit:  # the oldest minor version, final before candidate, in the order found
        return min(fit, key=lambda f: (f["version"][:2], not f["final"]))
    what = f"Python {request}" if request else "Python {}.{} or later".format(*OLDEST)
    tried = refused + [f"{f['path']} is {'.'.join(map(str, f['version']))}" for f in found]
    lines = [f"No {what} that runs was found. Tried:"]
    lines += [f"  {text}" for text in tried] or ["  nothing: no Python on PATH or in known folders"]
    lines.append("Install one (any way: the system's packages, pyenv, uv python install, ...),")
    lines.append("or name one yourself: tools/bootstrap.py --python /path/to/python3")
    raise NoPython("\n".join(lines))


def parse(request):
    match = re.fullmatch(r"(\d+)\.(\d+)", request)
    if not match:
        raise Problem(f"--python takes a version like 3.13 or a path, not {request!r}.")
    return int(match[1]), int(match[2])


# -- uv -------------------------------------------------------------------------------------------


def ensure_uv(pythons):
    """The path of the pinned uv, fetched by pip unless it is there already."""
    pins = REQUIREMENTS / "uv.txt"
    home, digest = TOOLS / "uv", sha256(pins)
    stamp, binary = home / "installed-from", home / "bin" / "uv"
    if binary.exists() and read(stamp) == digest:
        return binary
    say("fetching uv ...")
    TOOLS.mkdir(exist_ok=True)
    with scratch() as folder:
        new = Path(folder) / "uv"
        if not pip_install(pythons, pins, new, Path(folder)):
            return uv_on_path(pins)
        (new / "installed-from").write_text(digest)
        shutil.rmtree(home, ignore_errors=True)
        os.rename(new, home)
    return binary


def pip_install(pythons, pins, target, folder):
    """Install by the first pip that works; False if there is no pip at all."""
    last = None
    for pip in pips(pythons, folder):
        last = run(
            [
                *pip, "install", "--quiet", "--target", target, "--requirement", pins,
                "--require-hashes", "--no-deps", "--only-binary", ":all:",
            ],
            # Settings that would clash with --target.
            env={**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", **QUIET_PIP},
        )  # fmt: skip
        if last.returncode == 0 and (target / "bin" / "uv").exists():
            return True
        shutil.rmtree(target, ignore_errors=True)
    if last is not None:
        raise Problem(f"pip could not fetch uv:\n{output(last)}")
    return False


QUIET_PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def pips(pythons, folder):
    """Commands that are a pip: one installed, else one in an environment made for it.

    Debian's Python has neither pip nor ensurepip unless python3-venv is installed, but another
    interpreter on the machine may.
    """
    for python in pythons:
        if run([python, "-m", "pip", "--version"]).returncode == 0:
            yield [python, "-m", "pip"]
            return  # a second pip would fail for the same reason
    for number, python in enumerate(pythons):
        home = folder / f"pip-{number}"
        if run([python, "-m", "venv", home]).returncode == 0:
            yield [home / "bin" / "python", "-m", "pip"]
            return


def uv_on_path(pins):
    """Last resort: a uv that the person installed, if it is not older than the pinned one."""
    pinned = re.search(r"^uv==([\d.]+)", pins.read_text(), re.MULTILINE)[1]
    theirs = shutil.which("uv")
    if theirs:
        done = run([theirs, "--version"])
        version = re.search(r"\d+\.\d+\.\d+", done.stdout.decode())
        if done.returncode == 0 and version and numbers(version[0]) >= numbers(pinned):
            return Path(theirs)
    raise Problem(
        "No Python here has pip or can make an environment with it, and uv is not installed.\n"
        "On Debian and Ubuntu: apt-get install python3-venv. Elsewhere install pip, "
        f"or uv {pinned} or later."
    )


class Uv:
    """The pinned uv, told of the same registry and certificates as pip."""

    def __init__(self, binary, pythons):
        self.binary = binary
        self.env = {**os.environ, "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}
        self.env.pop("VIRTUAL_ENV", None)
        self.env.pop("CONDA_PREFIX", None)
        if not any(name in os.environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
            index = pip_setting(pythons, "index-url")
            if index:
                self.env["UV_DEFAULT_INDEX"] = index
        if "SSL_CERT_FILE" not in os.environ:
            cert = pip_setting(pythons, "cert")
            if cert:
                self.env["SSL_CERT_FILE"] = cert

    def __call__(self, *arguments):
        done = run([self.binary, "--quiet", *arguments], env=self.env)
        if done.returncode != 0:
            raise Problem(f"uv {' '.join(map(str, arguments[:2]))} failed:\n{output(done)}")


def pip_setting(pythons, name):
    """A setting of pip's from its environment variable or its configuration files."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    for python in pythons[:1]:
        for section in ("install", "global"):
            done = run([python, "-m", "pip", "config", "get", f"{section}.{name}"])
            if done.returncode == 0:
                return done.stdout.decode().strip()
    return None


# -- environments ---------------------------------------------------------------------------------


def ensure_environment(env, request, bench):
    """Make `env` what the requirement files and `request` say, if it isn't already."""
    stamp = env / STAMP
    was = stamp_of(env)
    # The benchmarks' peers, once there, stay: else `make test` and `make bench` would take turns.
    files = ["dev.txt"] + (["bench.txt"] if bench or "bench.txt" in was.get("files", ()) else [])
    want = {
        "home": str(env),  # a copied environment still points to where it was made
        "files": files,
        "requirements": sha256(*(REQUIREMENTS / name for name in files)),
        "project": sha256(ROOT / "pyproject.toml"),
    }
    usable = suits(env, was, request)
    if not usable:
        refuse_foreign(env)
    if usable and all(was.get(key) == value for key, value in want.items()):
        return
    facts = was["python"] if usable else choose(request)
    pythons = list(dict.fromkeys([sys.executable, facts["path"]]))
    uv = Uv(ensure_uv(pythons), pythons)
    python = env / "bin" / "python"
    say("setting up {} on Python {}.{}.{} ...".format(show(env), *facts["version"]))
    with contextlib.suppress(FileNotFoundError):
        stamp.unlink()  # from here until the end the environment is nobody's to trust
    if not usable:
        if env.exists():
            shutil.rmtree(str(env))
        uv("venv", "--no-project", "--python", facts["path"], env)
    if not usable or was.get("requirements") != want["requirements"]:
        paths = [REQUIREMENTS / name for name in files]
        uv("pip", "sync", "--python", python, "--require-hashes", *paths)
    # Without isolation and dependencies: the build is among the requirements, nothing is fetched.
    uv("pip", "install", "--python", python, "--no-deps", "--no-build-isolation", "-e", ROOT)
    write(stamp, json.dumps({**want, "python": facts}, indent=1))


def stamp_of(env):
    try:
        return json.loads(read(env / STAMP) or "{}")
    except ValueError:
        return {}


def suits(env, was, request):
    """Was it finished, here, on the Python that is asked for, and does that still exist?"""
    facts = was.get("python")
    if not facts or was.get("home") != str(env) or not (env / "bin" / "python").exists():
        return False
    if not request:
        return tuple(facts["version"][:2]) >= OLDEST
    if os.sep in request:
        return os.path.realpath(request) == os.path.realpath(facts["path"])
    return tuple(facts["version"][:2]) == parse(request)


def refuse_foreign(env):
    """What will be cleared must be an environment, or the rest of one by its name."""
    ours = env.name.startswith(".venv") or (env / "pyvenv.cfg").exists()
    if env.exists() and not ours and (env.is_file() or any(env.iterdir())):
        raise Problem(f"{show(env)} is there and no Python environment: remove or rename it.")


def ensure_servers(python):
    """The servers that the tests run, fetched by a program that needs the environment; its status."""
    return subprocess.call([str(python), str(ROOT / "tools" / "servers.py")], cwd=str(ROOT))


# -- requirement files ----------------------------------------------------------------------------


def lock_requirements(upgrade):
    """Compile requirements/*.in. No index is named in the results: they suit any mirror."""
    pythons = [sys.executable]
    uv = Uv(ensure_uv(pythons), pythons)
    for name in ("uv", "dev", "bench", "servers"):  # bench is constrained by dev
        say(f"compiling requirements/{name}.txt ...")
        uv(
            "pip", "compile", f"requirements/{name}.in", "-o", f"requirements/{name}.txt",
            "--universal", "--python-version", "{}.{}".format(*OLDEST), "--generate-hashes",
            "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock",
            *(["--no-deps"] if name == "servers" else []),  # for the programs in them, not to import
            *(["--upgrade"] if upgrade else []),
        )  # fmt: skip


# -- small things ---------------------------------------------------------------------------------


def run(command, env=None):
    try:
        return subprocess.run(
            [str(part) for part in command],
            cwd=str(ROOT),
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, b"", str(error).encode())


def output(done):
    return (done.stdout + done.stderr).decode(errors="replace").strip()


def sha256(*paths):
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def read(path):
    try:
        return path.read_text()
    except OSError:
        return None


def write(path, text):
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(str(part), str(path))


def show(path):
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)


@contextlib.contextmanager
def scratch():
    """A folder beside the final place, so that what is in it can be renamed there."""
    folder = tempfile.mkdtemp(prefix="new-", dir=str(TOOLS))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def alone():
    """One bootstrap at a time in a checkout; the system frees it even if we are killed."""
    TOOLS.mkdir(exist_ok=True)
    with open(str(TOOLS / "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another bootstrap of this checkout ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        for left in TOOLS.glob("new-*"):  # by a run that was killed
            shutil.rmtree(str(left), ignore_errors=True)
        yield


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", metavar="X.Y|PATH", help="the version, or the interpreter itself"
    )
    parser.add_argument("--env", default=".venv", metavar="DIR", help="where to (default: .venv)")
    parser.add_argument("--servers", action="store_true", help="fetch what the tests run, too")
    parser.add_argument("--bench", action="store_true", help="with what `make bench` needs")
    parser.add_argument("--optional", action="store_true", help="no such Python is no error")
    parser.add_argument("--list", action="store_true", help="show the interpreters and stop")
    parser.add_argument(
        "--lock", action="store_true", help="compile the requirement files and stop"
    )
    parser.add_argument(
        "--upgrade", action="store_true", help="with --lock: to the newest versions"
    )
    options = parser.parse_args(argv)
    try:
        if options.list:
            found, refused = interpreters()
            for facts in found:
                print("{}.{}.{}".format(*facts["version"]), facts["path"])
            for text in refused:
                print("-", text)
        elif options.lock:
            with alone():
                lock_requirements(options.upgrade)
        else:
            with alone():
                ensure_environment((ROOT / options.env).absolute(), options.python, options.bench)
            if options.servers:
                return ensure_servers((ROOT / options.env).absolute() / "bin" / "python")
    except NoPython as problem:
        if options.optional:
            say(f"bootstrap: no Python {options.python} here, so no {options.env}")
            return 0
        say(f"bootstrap: {problem}")
        return 1
    except Problem as problem:
        say(f"bootstrap: {problem}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
