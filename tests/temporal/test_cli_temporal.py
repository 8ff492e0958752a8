"""`dibs temporal …` as a command line: what it refuses, and what it leaves alone."""

import subprocess
import sys

import pytest

from tests.temporal.worker_processes import LONG, environment, free_address, run

pytestmark = [pytest.mark.once, pytest.mark.multiprocess]


def script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )


@pytest.mark.parametrize("line", [["version"], ["temporal", "worker", "--help"], ["--help"]])
def test_temporal_is_not_loaded_for_nothing(line: list[str]) -> None:
    done = script(
        "import sys; from dibs.cli import main\n"
        f"main({line!r})\n"
        "print([name for name in sys.modules if name.startswith('temporalio')])"
    )
    assert done.stdout.endswith("[]\n"), done.stderr


def test_without_temporal_it_says_what_to_install() -> None:
    done = script(
        "import sys; sys.modules['temporalio'] = None\n"
        "from dibs.cli import main\n"
        "sys.exit(main(['temporal', 'worker']))"
    )
    assert done.returncode == 64
    assert "needs the package temporalio: pip install 'dibs[temporal]'" in done.stderr


def test_without_temporal_the_package_says_so_too() -> None:
    done = script(
        "import sys; sys.modules['temporalio'] = None\n"
        "try: from dibs.temporal import Semaphore\n"
        "except ImportError as error: print(error)"
    )
    needs = "dibs.temporal needs the package temporalio: pip install 'dibs[temporal]'\n"
    assert (done.stdout, done.stderr) == (needs, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "redis://localhost"], "looks like temporal://host:7233/namespace"),
        (["--health", "8080"], "the health endpoint's address is '8080'"),
        (["--metrics", "nowhere"], "the metrics' address is 'nowhere'"),
        (["--drain", "soon"], "drain is 'soon'"),
        (["--data-converter", "json"], "write it as package.module:name"),
        (["--data-converter", "no.such:thing"], "No module named 'no'"),
        (["--data-converter", "json:dumps"], "the data converter is <function dumps at "),
        (
            ["--data-converter", "json:JSONEncoder"],
            "is <class 'json.encoder.JSONEncoder'>: give an object",
        ),
        (["--task-queue", ""], "task-queue is empty"),
        (["--address", ""], "address is empty"),
        (["--profile", "nosuch"], "nosuch"),
    ],
)
def test_wrong_usage(options: list[str], said: str) -> None:
    done = run("temporal", "worker", *options)
    assert done.returncode == 64, done.stderr
    assert said in done.stderr


def test_a_verb_is_wanted() -> None:
    done = run("temporal")
    assert done.returncode == 64
    assert "worker" in done.stderr + done.stdout


def test_the_stores_url_is_where_it_serves() -> None:
    """DIBS_URL, or `--store`, where that is Temporal."""
    nobody = free_address()
    env = environment(
        DIBS_URL=f"temporal://{nobody}/orders",
        DIBS_STORES__FLEET__URL=f"temporal://{nobody}/fleet",
        DIBS_STORES__CACHE__URL="redis://localhost",
    )
    assert f"{nobody}/orders can't be reached" in run("temporal", "worker", env=env).stderr
    fleet = run("--store", "fleet", "temporal", "worker", env=env)
    assert (fleet.returncode, f"{nobody}/fleet can't be reached" in fleet.stderr) == (69, True)
    cache = run("--store", "cache", "temporal", "worker", env=env)
    assert (cache.returncode, "is not a temporal:// store" in cache.stderr) == (64, True)
    none = run("--store", "none", "temporal", "worker", env=env)
    assert (none.returncode, "is not in the settings" in none.stderr) == (64, True)
