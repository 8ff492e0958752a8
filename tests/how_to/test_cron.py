"""The jobs of docs/how-to/cron.md, as three hosts run them."""

import re
import sys
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.how_to.programs import LONG, Programs, printed
from tests.pages import blocks

PAGE = "how-to/cron.md"
JOB = re.compile(r"^(?:\S+ ){4}\S+ (/opt/.*)$", re.MULTILINE)


@pytest.mark.multiprocess
def test_one_of_three_hosts_runs_the_job(tmp_path: Path, redis_url: str) -> None:
    crontabs = [text for text in blocks(PAGE, "text") if "/opt/" in text]
    variables = dict(re.findall(r"^(DIBS_\w+)=(.*)$", crontabs[0], re.MULTILINE))
    assert variables.keys() == {"DIBS_URL", "DIBS_REQUIRE"}
    nightly, skips, lasts = (
        JOB.findall(text)[0]
        .replace("/opt/dibs/bin", str(Path(sys.executable).parent))
        .replace("/opt/jobs", str(tmp_path))
        for text in crontabs
    )
    with Programs(PAGE, tmp_path, **variables | {"DIBS_URL": redis_url}) as hosts:
        jobs = [hosts.start("sh", "-c", nightly) for _ in range(3)]
        assert re.fullmatch(r"the report, with token \d+\n", "".join(map(printed, jobs)))
        assert hosts.run("sh", "-c", nightly) == ""

        job = tmp_path / "sync"
        job.write_text("#!/bin/sh\necho synchronised; exit 3\n")
        job.chmod(0o755)
        assert "sleep 30" in lasts
        for command in (skips, lasts.replace("sleep 30", "sleep 0")):
            with connect(redis_url) as client, client.lock("sync"):
                skipped = hosts.start("sh", "-c", command)
                assert (*skipped.communicate(timeout=LONG), skipped.returncode) == ("", "", 75)
            done = hosts.start("sh", "-c", command)
            assert (*done.communicate(timeout=LONG), done.returncode) == ("synchronised\n", "", 3)

        (message,) = (text for text in blocks(PAGE, "text") if "no store is set" in text)
        del hosts.environment["DIBS_URL"]
        for command in (nightly, skips):
            forgotten = hosts.start("sh", "-c", command)
            assert message.strip() in forgotten.communicate(timeout=LONG)[1]
            assert forgotten.returncode != 0
