"""The wheel, by itself and with each extra, in an environment that has nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "requirements/dev.txt"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")


def run(*command: str | Path, expect: int = 0, **environment: str) -> str:
    """Run a command outside of the repository and return all of its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    done = subprocess.run(
        command, env=env | environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | NO_NETWORK, capture_output=True, check=True)
    [built] = folder.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path, extras: str) -> Path:
    """Make an environment with the wheel and these extras; return its `bin`."""
    uv = ROOT / (os.environ.get("UV") or shutil.which("uv") or ".tools/uv/bin/uv")
    run(uv, "venv", "--python", sys.executable, folder)
    dibs = f"dibs[{extras}] @ {wheel.as_uri()}"
    install = (uv, "pip", "install", "--python", folder, "--constraint", PINS, dibs)
    from_cache = subprocess.run([*install, "--offline"], capture_output=True, check=False)
    if from_cache.returncode != 0:
        run(*install)
    return folder / "bin"


def test_wheel_is_typed_complete_and_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        [metadata] = [name for name in inside if name.endswith(".dist-info/METADATA")]
        needed = [
            line
            for line in archive.read(metadata).decode().splitlines()
            if line.startswith("Requires-Dist:")
        ]
    assert "dibs/py.typed" in inside
    pages = (ROOT / "src/dibs/server/ui/assets").rglob("*.*")
    assert {str(page.relative_to(ROOT / "src")) for page in pages} <= set(inside)
    assert any(name.endswith("/LICENSE") for name in inside)
    assert {name.split("/")[0] for name in inside if ".dist-info" not in name} == {"dibs"}
    assert [line for line in needed if "extra ==" not in line] == [], "a runtime dependency"


def test_without_extras_a_lock_works_and_the_command_names_its_extra(
    wheel: Path, tmp_path: Path
) -> None:
    scripts = installed(wheel, tmp_path / "env", "")
    code = "from dibs.sync import Lock\nwith Lock('order:42') as lease: print(lease.token > 0)"
    url = f"sqlite:///{tmp_path}/leases.db"
    assert run(scripts / "python", "-W", "error", "-c", code, DIBS_URL=url) == "True\n"
    assert 'pip install "dibs[cli]"' in run(scripts / "dibs", "list", expect=64)


OPEN = "import dibs.sync; dibs.sync.connect('{}').close()"
PROGRAMS = {
    "redis": OPEN.format("redis://localhost"),
    "postgres": OPEN.format("postgresql://localhost"),
    "etcd": OPEN.format("etcd://localhost"),
    "kubernetes": "import dibs.stores.kubernetes.store",
    "nats": OPEN.format("nats://localhost"),
    "s3": OPEN.format("s3://bucket"),
    "http": OPEN.format("http://localhost"),
    "temporal": OPEN.format("temporal://localhost") + "\nimport dibs.temporal",
    "tasks": "from dibs.tasks import TaskRouter; TaskRouter().cron('@daily')(print)",
}
"""What an extra makes possible, and would fail without it."""


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_brings_what_its_part_needs(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "env", extra) / "python"
    assert run(python, "-W", "error", "-c", PROGRAMS[extra]) == ""


def test_the_demo_needs_two_extras(wheel: Path, tmp_path: Path) -> None:
    scripts = installed(wheel, tmp_path / "env", "cli,server")
    assert " in total; all processes have ended" in run(
        scripts / "dibs", "demo", "--for", "1s", "--workers", "4"
    )
