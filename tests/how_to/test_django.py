"""The project of docs/how-to/django.md."""

import shlex

from dibs.sync import connect
from tests.cli.processes import end
from tests.how_to.programs import Programs
from tests.pages import blocks

PAGE = "how-to/django.md"
MANAGE = "python manage.py"


def test_one_process_migrates_and_one_bills(programs: Programs) -> None:
    del programs.environment["DIBS_URL"]
    programs.run(f"{MANAGE} makemigrations shop")
    ends = [end(each) for each in [programs.start(f"{MANAGE} locked_migrate") for _ in range(3)]]
    assert [code for code, _, _ in ends] == [0, 0, 0]
    assert sum("Applying shop.0001_initial... OK" in out for _, out, _ in ends) == 1
    assert sum("No migrations to apply." in out for _, out, _ in ends) == 2
    url = f"sqlite:///{programs.folder}/shop.db.leases"
    with connect(url) as client, client.lock("bill"):
        assert programs.run(f"{MANAGE} bill").startswith("skipped: bill is held by ")
    assert programs.run(f"{MANAGE} bill").startswith("billed with token ")
    (transaction,) = (code for code in blocks(PAGE) if "locked_atomic" in code)
    programs.run(f"{MANAGE} shell -v0 -c {shlex.quote(transaction)}")
