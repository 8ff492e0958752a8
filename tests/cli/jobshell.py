"""As much of an interactive shell as job control needs: one job on a terminal, `fg` and `bg`.

Run as a script in a session of its own: the terminal's path, where the job's stdout goes ("-" is the
terminal), the command. It reads orders from its stdin and reports to its stdout.
"""

import os
import signal
import sys


def main(terminal: str, out: str, *command: str) -> None:
    orders, reports = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    opened = os.open(terminal, os.O_RDWR)  # a session without a terminal makes it its own
    for stream in (0, 1, 2):
        os.dup2(opened, stream)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        _run(out, command)
    try:
        os.setpgid(job, job)
    except PermissionError:
        pass  # it has done so itself and runs already
    while True:
        status = os.waitpid(job, os.WUNTRACED)[1]
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            print("exited", os.waitstatus_to_exitcode(status), file=reports)
            return
        print("stopped", signal.Signals(os.WSTOPSIG(status)).name, file=reports)
        if orders.readline() == "fg\n":
            os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)


def _run(out: str, command: tuple[str, ...]) -> None:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    if out != "-":
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
