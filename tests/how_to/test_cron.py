"""The jobs of docs/how-to/cron.md, as three hosts run them."""

import re
import sys
from pathlib import Path

from dibs.sync import connect
from tests.cli.processes import end
from tests.how_to.programs import Programs, printed
from tests.pages import blocks

PAGE = "how-to/cron.md"
JOB = re.compile(r"^(?:\S+ ){4}\S+ (/opt/.*)$", re.MULTILINE)


def test_one_of_three_hosts_runs_the_job(programs: Programs, redis_url: str) -> None:
    crontabs = [text for text in blocks(PAGE, "text") if "/opt/" in text]
    variables = dict(re.findall(r"^(DIBS_\w+)=(.*)$", crontabs[0], re.MULTILINE))
    assert variables.keys() == {"DIBS_URL", "DIBS_REQUIRE"}
    programs.environment |= variables | {"DIBS_URL": redis_url}
    nightly, skips, lasts = (
        JOB.findall(text)[0]
        .replace("/opt/dibs/bin", str(Path(sys.executable).parent))
        .replace("/opt/jobs", str(programs.folder))
        for text in crontabs
    )
    jobs = [programs.start(nightly) for _ in range(3)]
    assert re.fullmatch(r"the report, with token \d+\n", "".join(map(printed, jobs)))
    assert programs.run(nightly) == ""

    job = programs.folder / "sync"
    job.write_text("#!/bin/sh\necho synchronised; exit 3\n")
    job.chmod(0o755)
    assert "sleep 30" in lasts
    for command in (skips, lasts.replace("sleep 30", "sleep 0")):
        with connect(redis_url) as client, client.lock("sync"):
            assert end(programs.start(command)) == (75, "", "")
        assert end(programs.start(command)) == (3, "synchronised\n", "")

    (message,) = (text for text in blocks(PAGE, "text") if "no store is set" in text)
    del programs.environment["DIBS_URL"]
    for command in (nightly, skips):
        code, _, err = end(programs.start(command))
        assert message.strip() in err
        assert code != 0
