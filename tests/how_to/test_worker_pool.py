"""The workers of docs/how-to/worker-pool.md."""

from tests.how_to.programs import Programs, printed
from tests.pages import blocks, run

PAGE = "how-to/worker-pool.md"


def test_no_gpu_has_two_jobs_at_a_time(programs: Programs) -> None:
    programs.edit("train.py", "time.sleep(1)", "time.sleep(0.3)")
    command = "python -W error worker.py {0}-1 {0}-2 >> log"  # one file, so one order
    for worker in [programs.start(command.format(name)) for name in "abcdef"]:
        printed(worker)
    begun: dict[str, str] = {}
    done: list[str] = []
    for line in (programs.folder / "log").read_text().splitlines():
        _, gpu, what, job = line.split()
        if what == "begins":
            assert gpu in "0123"
            assert begun.setdefault(gpu, job) == job, line
        else:
            done.append(begun.pop(gpu))
    assert sorted(done) == [f"{worker}-{number}" for worker in "abcdef" for number in (1, 2)]
    (two,) = (code for code in blocks(PAGE) if "units=2" in code)
    assert run(two, programs.folder) == "on GPUs (0, 1)\n"
