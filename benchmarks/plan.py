"""What a run was asked to do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.servers import Servers


@dataclass(frozen=True)
class Plan:
    """How long, how often, what, and where."""

    rounds: int
    seconds: float
    patterns: tuple[str, ...]
    folder: Path
    leases: int
    uvloop: bool
    servers: Servers

    def chosen(
        self, section: str, setting: str, contestants: Iterable[str], baseline: str = ""
    ) -> list[str]:
        """The contestants that are asked for, and their baseline if there are any."""
        names = list(contestants)
        wanted = [name for name in names if self._wants(f"{section}/{setting}/{name}")]
        return [name for name in names if name in wanted or (wanted and name == baseline)]

    def _wants(self, name: str) -> bool:
        name = name.lower()
        patterns = [pattern.lower() for pattern in self.patterns]
        return not patterns or any(p in name or fnmatch(name, p) for p in patterns)

    def folder_for(self, what: str, server: str = "") -> str:
        """A new folder of one contestant's own, in which stands where its server is."""
        folder = self.folder / re.sub(r"[^a-zA-Z0-9.]+", "-", what)
        folder.mkdir()
        if server:
            self.servers.place(server, str(folder))
        return str(folder)
