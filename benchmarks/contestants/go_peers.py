"""Locks on Redis by libraries of Go, in one program that `make bench` builds from `benchmarks/go`."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.contestants.kinds import Contestant, Program
from benchmarks.place import Place

PROGRAM = Path(__file__).parents[2] / ".tools" / "go-locks"


def _of(contestant: str) -> Callable[[Place, int, float], list[str | Path]]:
    def command(place: Place, tasks: int, seconds: float) -> list[str | Path]:
        if not PROGRAM.exists():
            raise FileNotFoundError(
                f"no {PROGRAM}: install Go 1.26 or later, then run `make bench`"
            )
        at = urlsplit(place.server_url)
        options = ["-contestant", contestant, "-address", f"{at.hostname}:{at.port}"]
        return [PROGRAM, *options, "-tasks", str(tasks), "-seconds", str(seconds)]

    return command


CYCLES: dict[str, Contestant] = {
    "Go's redislock": Program(_of("redislock")),
    "Go's redsync": Program(_of("redsync")),
    "Go's rueidis, bare pair": Program(_of("bare")),
}
