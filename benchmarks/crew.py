"""Processes that measure: started once, then told when to begin each round.

Each is `python -m benchmarks.crew MODULE:FUNCTION JSON`, and speaks one JSON object a line.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any

HEAD_START = 0.02
"""All processes of a round begin this long after they are told, in seconds."""


class Line:
    """A worker's side of the conversation."""

    def hear(self) -> dict[str, Any] | None:
        """The next order; None when there are no more."""
        line = sys.stdin.readline()
        order: dict[str, Any] | None = json.loads(line) if line else None
        return order

    def say(self, **answer: Any) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Worker:
    """The starter's side of it."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.crew", target, json.dumps(arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed, as `answer` will tell
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with code {self._process.wait()}: its traceback is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Crew:
    """Some workers that begin together."""

    def __init__(self, target: str, arguments: Sequence[dict[str, Any]]) -> None:
        self._workers = [Worker(target, each) for each in arguments]

    def begin(self, **order: Any) -> None:
        """Tell all workers when to begin."""
        start = time.monotonic() + HEAD_START
        for worker in self._workers:
            worker.tell(at=start, **order)

    def end(self) -> list[dict[str, Any]]:
        """Wait for an answer of each. Raises `RuntimeError` if one has failed."""
        return [worker.answer() for worker in self._workers]

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._workers)) as pool:
            list(pool.map(Worker.close, self._workers))


def wait_for(at: float) -> None:
    """Until that reading of the monotonic clock."""
    left = at - time.monotonic()
    if left > 0:
        time.sleep(left)


def main() -> None:
    target, arguments = sys.argv[1], json.loads(sys.argv[2])
    module, _, function = target.partition(":")
    getattr(import_module(module), function)(Line(), **arguments)


if __name__ == "__main__":
    main()
