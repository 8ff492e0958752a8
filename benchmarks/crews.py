"""The crews of contestants that take turns; one that fails costs the others nothing."""

from typing import Any, Self

from benchmarks.crew import Crew
from benchmarks.results import Results


class Crews:
    """One crew for each contestant, all alive at the same time, one at work."""

    def __init__(self, results: Results, section: str, setting: str) -> None:
        self._crews: dict[str, Crew] = {}
        self._results = results
        self._about = section, setting

    def start(self, name: str, crew: Crew) -> None:
        self._crews[name] = crew

    def get_ready(self) -> None:
        """Wait until all have opened what they need."""
        for name in list(self._crews):
            self._end(name)

    def heat(self, seconds: float) -> None:
        """All at once, so that it doesn't take long."""
        for crew in self._crews.values():
            crew.begin(seconds=seconds)
        for name in list(self._crews):
            self._end(name)

    def round(self, name: str, **order: Any) -> list[dict[str, Any]]:
        """One contestant's round: an answer from each of its processes; none once it has failed."""
        crew = self._crews.get(name)
        if crew is None:
            return []
        crew.begin(**order)
        return self._end(name)

    def _end(self, name: str) -> list[dict[str, Any]]:
        try:
            return self._crews[name].end()
        except RuntimeError as error:
            self._results.fail(*self._about, name, str(error))
            self._crews.pop(name).close()
            return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        for crew in self._crews.values():
            crew.close()


def turned(names: list[str], number: int) -> list[str]:
    """Nobody is always first, or always after the same one's disk writes."""
    at = number % len(names) if names else 0
    return names[at:] + names[:at]
