"""What a Redis server was asked to do between two moments: calls of the script, and messages published."""

from typing import Any

_COUNTED = {
    "calls a turn": ("cmdstat_evalsha", "cmdstat_eval"),
    "messages a turn": ("cmdstat_publish",),
}


class Traffic:
    """Counts from when it is made; of other stores it knows nothing."""

    def __init__(self, url: str) -> None:
        self._redis: Any = None
        if url.startswith("redis:"):
            import redis

            self._redis = redis.Redis.from_url(url)
            self._before = self._counts()

    def _counts(self) -> dict[str, int]:
        commands = self._redis.info("commandstats")
        return {
            unit: sum(commands.get(name, {}).get("calls", 0) for name in names)
            for unit, names in _COUNTED.items()
        }

    def since(self, *, turns: int) -> dict[str, float]:
        """What each turn cost since then."""
        if self._redis is None:
            return {}
        after = self._counts()
        return {unit: (after[unit] - self._before[unit]) / turns for unit in _COUNTED}
