"""The programs of most how-to pages."""

import re
import shlex
import signal
import sys
from operator import itemgetter
from pathlib import Path

import pytest
import yaml

from dibs.sync import Client, connect
from tests.cli.processes import end
from tests.how_to.programs import Programs, line_with, printed, programs_of
from tests.pages import blocks, run
from tests.servers.temporal import TemporalServer
from tests.servers.waiting import wait_until


@programs_of("celery")
def test_one_task_is_retried_and_the_other_skipped(programs: Programs, redis_url: str) -> None:
    """`tests/contrib/test_celery.py` has workers that fork."""
    programs.url = redis_url
    programs.edit("tasks.py", "redis://localhost:6379/0", redis_url)
    programs.edit("tasks.py", "time.sleep(2)", "time.sleep(0.2)")
    worker = programs.shell("exec celery -A tasks worker -P threads -c 4 -l INFO")
    line_with(" ready.", worker, "stderr")
    with connect(redis_url) as client, client.lock("report"):
        with client.lock("sync:7"):
            send = programs.shell("python send.py")
            line_with("retry: Retry in", worker, "stderr")
        first, second, *reports = printed(send).splitlines()
    worker.terminate()
    assert end(worker)[0] == 0
    assert first.startswith("synchronised user 7 with token ")
    assert second.startswith("synchronised user 7 with token ")
    assert first != second
    assert reports == ["skipped", "skipped"]


JOB = re.compile(r"^(?:\S+ ){4}\S+ (/opt/.*)$", re.MULTILINE)


@programs_of("cron")
def test_one_of_several_hosts_runs_the_job(page: str, programs: Programs, redis_url: str) -> None:
    crontabs = [text for text in blocks(page, "text") if "/opt/" in text]
    variables = dict(re.findall(r"^(DIBS_\w+)=(.*)$", crontabs[0], re.MULTILINE))
    assert variables.keys() == {"DIBS_URL", "DIBS_REQUIRE"}
    programs.environment |= variables | {"DIBS_URL": redis_url}
    nightly, skips, lasts = (
        JOB.findall(text)[0]
        .replace("/opt/dibs/bin", str(Path(sys.executable).parent))
        .replace("/opt/jobs", str(programs.folder))
        for text in crontabs
    )
    assert re.fullmatch(r"the report, with token \d+\n", programs.run(nightly))
    assert programs.run(nightly) == ""

    job = programs.folder / "sync"
    job.write_text("#!/bin/sh\necho synchronised; exit 3\n")
    job.chmod(0o755)
    with connect(redis_url) as client, client.lock("sync"):
        assert end(programs.shell(skips)) == (75, "", "")
    last = lasts.replace("sleep 30", "sleep 0")
    assert last != lasts
    assert end(programs.shell(last)) == (3, "synchronised\n", "")

    (message,) = (text for text in blocks(page, "text") if "no store is set" in text)
    del programs.environment["DIBS_URL"]
    for command in (nightly, skips):
        code, _, err = end(programs.shell(command))
        assert message.strip() in err
        assert code != 0


MANAGE = """
import dibs.sync
from django.core.management import call_command

call_command("makemigrations", "shop", verbosity=0)
call_command("locked_migrate")
with dibs.sync.connect(dibs.sync.connect().url) as another, another.lock("bill"):
    call_command("bill")
call_command("bill")
"""


@programs_of("django")
def test_it_migrates_and_bills(page: str, programs: Programs) -> None:
    """`tests/contrib/test_django.py` has several processes."""
    del programs.environment["DIBS_URL"]
    (transaction,) = (code for code in blocks(page) if "locked_atomic" in code)
    out = programs.run(f"python manage.py shell -v0 -c {shlex.quote(MANAGE + transaction)}")
    assert "Applying shop.0001_initial... OK" in out
    skipped, billed = out.splitlines()[-2:]
    assert skipped.startswith("skipped: bill is held by ")
    assert billed.startswith("billed with token ")
    assert (programs.folder / "shop.db.leases").exists()


CHECK = "            fence.check(lease, database)\n"


@programs_of("late-writes")
@pytest.mark.parametrize(
    ("name", "removed", "kept"),
    [
        ("shop.py", "", "packed by: ('bob',)"),
        ("shop.py", CHECK, "packed by: ('alice',)"),
        ("cart.py", "", "paid by: bob"),
        ("report.py", "", "written by bob"),
    ],
    ids=["SQL", "SQL without the check", "Redis", "file"],
)
def test_a_paused_holder_is_too_late(
    name: str, removed: str, kept: str, redis_url: str, programs: Programs, client: Client
) -> None:
    programs.edit(name, removed, "")
    programs.environment["REDIS_URL"] = redis_url
    alice = programs.shell(f"python -W error {name} alice")
    lock = line_with("alice holds", alice).split()[2].rstrip(".")
    alice.send_signal(signal.SIGSTOP)  # as Ctrl-Z
    client.revoke(lock, reason="its ttl is over", now=True)
    bob = programs.shell(f"python -W error {name} bob")
    assert "bob holds" in bob.communicate("\n", timeout=60)[0]
    alice.send_signal(signal.SIGCONT)  # as fg
    late, last = alice.communicate("\n", timeout=60)[0].splitlines()
    assert last == kept
    assert late.startswith("alice is too late: ")
    assert ("is stale" in late) != bool(removed)


@programs_of("leader")
def test_sigterm_hands_over_at_once(programs: Programs, client: Client) -> None:
    """Long before the term would expire."""
    programs.environment["DIBS_LEADER__PLANNER__TTL"] = "10m"
    election = client.leader_election("planner")
    first = programs.shell("python -W error planner.py")
    line_with("leads, with token", first)
    second = programs.shell("python -W error planner.py")
    wait_until(lambda: election.status().waiting, "the second is a candidate")
    first.terminate()
    line_with("leads, with token", second)
    assert printed(first) == "stops\n"
    second.terminate()
    assert printed(second) == "stops\n"
    text = (programs.folder / "planner.yaml").read_text()
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert (programs.folder / pod["containers"][0]["command"][1]).exists()
    assert pod["terminationGracePeriodSeconds"] > 0


@programs_of("pytest")
def test_the_tests_of_a_program_that_uses_locks(programs: Programs) -> None:
    """They pass, and the one that leaks fails."""
    programs.environment["DIBS_URL"] = "sqlite:////nowhere/leases.db"
    options = (
        f"-p no:xdist -o asyncio_default_fixture_loop_scope=function --rootdir {programs.folder}"
    )
    _, out, err = end(programs.shell(f"python -m pytest -q -W error {options}"))
    assert "1 failed, 6 passed" in out, out + err
    assert "FAILED test_leak.py" in out
    assert "the test ended while leases were held" in out
    assert "lock 'report', held by " in out


@programs_of("temporal")
def test_workflows_and_activities_take_turns(
    programs: Programs, temporal_server: TemporalServer
) -> None:
    programs.environment["TEMPORAL_ADDRESS"] = temporal_server.address
    programs.environment["TEMPORAL_TASK_QUEUE"] = "permits-of-how-to"
    picking, partner = (
        programs.run(f"python -W error {name}.py") for name in ("picking", "partner")
    )
    turn = r"picking order (\d) of acme, with token (\d{16})\npicked order \1\n"
    turns = re.findall(turn, picking)
    assert {order for order, _ in turns} == set("012"), picking
    assert turns == sorted(turns, key=itemgetter(1))
    calls = re.findall(r"order (\d) calls .* slot ([01]), with token (\d{16})\n", partner)
    assert {order for order, _, _ in calls} == set("012345")
    for slot in "01":  # a slot has one holder after the other
        tokens = [token for _, used, token in calls if used == slot]
        assert tokens == sorted(set(tokens))


@programs_of("transfer")
def test_transfers_at_the_same_time_and_a_late_one(programs: Programs) -> None:
    programs.edit("bank.py", "time.sleep(1)", "time.sleep(0.2)")
    there = programs.shell("python -W error bank.py alice bob 30")
    back = programs.shell("python -W error bank.py bob alice 10")
    assert "alice 80 bob 120\n" in (printed(there), printed(back))
    _, out, _ = end(programs.shell("python -W error late.py"))
    refusal, balance = out.splitlines()
    assert refusal.endswith("leave the rest of the work to that holder")
    assert "account:alice is stale" in refusal
    assert balance == "alice 70"

    told = programs.run("python -W error deadlock.py")
    assert "transferred from " in told
    assert "holds account:alice and waits for account:bob" in told
    assert "holds account:bob and waits for account:alice" in told


@programs_of("worker-pool")
def test_no_gpu_has_two_jobs_at_a_time(page: str, programs: Programs) -> None:
    programs.edit("train.py", "time.sleep(1)", "time.sleep(0.3)")
    command = "python -W error worker.py {0}-1 {0}-2 >> log"  # one file, so one order
    for worker in [programs.shell(command.format(name)) for name in "abcdef"]:
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
    (two,) = (code for code in blocks(page) if "units=2" in code)
    assert run(two, programs.folder) == "on GPUs (0, 1)\n"


SHELL = programs_of("shell")


@SHELL
def test_commands_take_turns(page: str, programs: Programs) -> None:
    programs.edit("report.sh", "sleep 2", "until test -e go; do sleep 0.02; done")
    (together,) = re.findall(r"^\$ (dibs run .* wait)$", blocks(page, "console")[1], re.MULTILINE)
    both = programs.shell(together)
    line_with("waiting for report: held by", both, "stderr")
    (programs.folder / "go").touch()
    _, out, _ = end(both)
    starts = r"report (\w) starts, with token (\d+)\nreport \1 ends\n"
    (first, low), (second, high) = re.findall(starts, out)
    assert ({first, second}, int(low) < int(high)) == ({"A", "B"}, True)


@SHELL
def test_a_run_is_skipped(programs: Programs, client: Client) -> None:
    programs.edit("report.sh", "sleep 2", "sleep 0")
    with client.lock("report"):
        assert programs.run("bash once.sh") == "another report runs: skipped\n"
    assert "report C ends\ndone\n" in programs.run("bash once.sh")


@pytest.mark.parametrize(
    ("step", "code", "out"),
    [
        ("sleep 0", 0, ["build", "renewed", "switch", "released"]),
        ("dibs revoke deploy --now --reason 'a test'", 76, ["build", "revoked"]),
        ("kill $$", -signal.SIGTERM, ["build", "released"]),
    ],
    ids=["to its end", "lost", "killed"],
)
@SHELL
def test_a_script_with_steps(
    programs: Programs, client: Client, step: str, code: int, out: list[str]
) -> None:
    programs.edit("deploy.sh", 'echo "build"\nsleep 1', f'echo "build"\n{step}')
    programs.edit("deploy.sh", "sleep 1", "sleep 0")
    ended, printed, _ = end(programs.shell("bash deploy.sh"))
    assert (ended, [line.split()[0] for line in printed.splitlines()]) == (code, out)
    assert not client.lock("deploy").locked()


@SHELL
def test_a_script_that_does_not_get_the_lock(programs: Programs, client: Client) -> None:
    programs.edit("deploy.sh", "--wait 10m", "--wait 0.1s")
    with client.lock("deploy"):
        assert end(programs.shell("bash deploy.sh"))[:2] == (75, "")
