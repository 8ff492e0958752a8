"""The workers of docs/how-to/worker-pool.md."""

import sys
from pathlib import Path

import pytest

from tests.how_to.programs import Programs, printed
from tests.pages import blocks, run

PAGE = "how-to/worker-pool.md"


@pytest.mark.multiprocess
def test_no_gpu_has_two_jobs_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = f"exec {sys.executable} -W error worker.py $0-1 $0-2 >> log"  # one file, so one order
    with Programs(PAGE, tmp_path) as programs:
        for worker in [programs.start("sh", "-c", command, name) for name in "abcdef"]:
            printed(worker)
    begun: dict[str, str] = {}
    done: list[str] = []
    for line in log.read_text().splitlines():
        _, gpu, what, job = line.split()
        if what == "begins":
            assert gpu in "0123"
            assert begun.setdefault(gpu, job) == job, line
        else:
            done.append(begun.pop(gpu))
    assert sorted(done) == [f"{worker}-{number}" for worker in "abcdef" for number in (1, 2)]
    (two,) = (code for code in blocks(PAGE) if "units=2" in code)
    assert run(two, tmp_path) == "on GPUs (0, 1)\n"
