"""The program ends when it is told to, whatever gets in the way."""

import subprocess
import sys

from tests.cli.processes import LONG
from tests.runtime.scripts import run_script


def test_a_signal_that_got_lost_is_raised_again() -> None:
    """The interpreter drops what a handler raises within a finalizer."""
    told = run_script(
        """
        import os, signal, sys
        from dibs.cli.signals import Interrupted, Signals

        class Bystander:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                print("goes on")

        signals = Signals()
        signals.install()
        signals.check()
        sys.unraisablehook = lambda lost: print("lost", lost.exc_value.signum)
        Bystander()
        try:
            signals.check()
        except Interrupted as again:
            print("again", again.signum)
        """
    )
    assert told == ["lost 15", "again 15"]


def test_what_hangs_at_the_end_is_left_behind() -> None:
    code = """if True:
        import atexit, threading
        import temporalio
        from dibs.cli.leaving import leave, leave_within

        held = threading.Lock()
        held.acquire()
        atexit.register(held.acquire)
        leave_within(0.2, 7)
        leave_within(3600, 8)  # the first counts
        leave(9)
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 7
    assert "could not close the store within 0.2 s" in done.stderr


def test_daemons_and_other_threads_are_not_waited_for() -> None:
    code = """if True:
        import threading
        import temporalio
        from dibs.cli.leaving import leave

        threading.Thread(target=threading.Event().wait).start()
        leave(5)
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (5, "")
