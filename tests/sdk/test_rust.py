"""The Rust SDK: its own tests with a real service, the renewal arithmetic, and Rust beside Python."""

from pathlib import Path

import pytest

from dibs.testing import TorturePlan
from tests.pages import blocks
from tests.sdk.cargo import BUILD, CRATE, run_cargo
from tests.sdk.torture import mixed
from tests.sdk.vectors import FILE, vectors
from tests.server.torture.site import StoreName
from tests.servers.certificates import key_of, self_signed
from tests.stores.http.processes import DibsServer

pytestmark = [pytest.mark.once, pytest.mark.timeout(BUILD)]


def test_the_vectors_are_what_the_runtime_computes_now() -> None:
    assert FILE.read_text() == vectors(), "run `python -m tests.sdk.vectors`, and mend the SDK"


@pytest.mark.long
def test_the_crate_passes_its_tests_with_a_real_service(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "tls.pem")
    tls = ("--tls-cert", certificate, "--tls-key", key_of(certificate))
    with DibsServer(tmp_path, f"sqlite:///{tmp_path / 'leases.db'}", options=tls) as server:
        url = f"{server.url.replace('http', 'https', 1)}?cafile={certificate}"
        run_cargo("test", "--all-features", "--lib", "--tests", "--examples", DIBS_TEST_URL=url)


PROGRAMS = ("pay", "operate", "threads")


@pytest.mark.long
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    """They are examples of the crate, and the page shows them as they are."""
    files = [CRATE / "tests/page" / f"{each}.rs" for each in PROGRAMS]
    assert blocks("rust.md", "rust") == [each.read_text() for each in files]
    with DibsServer(tmp_path, f"sqlite:///{tmp_path / 'leases.db'}") as server:
        for each in PROGRAMS:
            words = ("--all-features", "--example", f"page_{each}")
            run_cargo("run", *words, DIBS_URL=server.url)


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_rust_and_python_exclude_each_other_under_faults(
    tmp_path: Path, store: StoreName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.testing.torture.supervise.LINGER", 0.0)  # the store ends anyway
    plan = TorturePlan(
        seconds=5, processes=2, tasks=4, ttl=1, seed=3, primitives=("lock", "semaphore", "rwlock")
    )
    with mixed(tmp_path, store, plan) as torture:
        verdict = torture.run()
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert torture.storm.counts.total() > 2
    assert torture.judged_by.rust, str(verdict)
    # few: a Python that was killed takes long to start
    assert torture.judged_by.python, str(verdict)
