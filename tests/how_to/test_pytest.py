"""How to test a program that uses locks: the tests of the page pass, and the one that leaks fails."""

from tests.cli.processes import end
from tests.how_to.programs import Programs

PAGE = "how-to/pytest.md"


def test_the_tests_of_the_page(programs: Programs) -> None:
    programs.environment["DIBS_URL"] = "sqlite:////nowhere/leases.db"
    options = (
        f"-p no:xdist -o asyncio_default_fixture_loop_scope=function --rootdir {programs.folder}"
    )
    _, out, err = end(programs.start(f"python -m pytest -q -W error {options}"))
    assert "1 failed, 6 passed" in out, out + err
    assert "FAILED test_leak.py" in out
    assert "the test ended while leases were held" in out
    assert "lock 'report', held by " in out
