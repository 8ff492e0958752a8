"""What was measured: a value for each round, so that medians, spreads and ratios can be told."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan
from statistics import median


@dataclass
class Row:
    """One line of the table."""

    section: str
    setting: str
    contestant: str
    unit: str
    baseline: str = ""
    """The contestant, of the same section, setting and unit, that it is a multiple of."""
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.values) if self.values else nan

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values, default=nan), max(self.values, default=nan)


class Results:
    """All rows, in the order in which they were begun."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str, str], Row] = {}

    def row(
        self, section: str, setting: str, contestant: str, unit: str, baseline: str = ""
    ) -> Row:
        key = section, setting, contestant, unit
        return self._rows.setdefault(key, Row(*key, baseline=baseline))

    def fail(self, section: str, setting: str, contestant: str, why: str) -> None:
        """A contestant could not go on; what it had measured until then stands."""
        rows = [r for r in self._rows.values() if (r.section, r.setting) == (section, setting)]
        unit = rows[0].unit if rows else ""
        self.row(section, setting, contestant, unit).note = f"FAILED: {why}"

    def find(self, section: str, setting: str, contestant: str, unit: str) -> Row | None:
        row = self._rows.get((section, setting, contestant, unit))
        return row if row is not None and row.values else None

    def __iter__(self) -> Iterator[Row]:
        """Grouped by section and setting."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self._rows.values():
            if row.values or row.note:
                groups.setdefault((row.section, row.setting), []).append(row)
        return (row for group in groups.values() for row in group)

    def of(self, row: Row) -> float | None:
        """A row as a multiple of its baseline; None without one."""
        base = self.find(row.section, row.setting, row.baseline, row.unit)
        return None if base is None or base is row or not row.values else multiple(row, base)


def multiple(row: Row, base: Row) -> float:
    """The median of the rounds' ratios: a round's noise hits both sides of it.

    Where there are not as many rounds on both sides it is the ratio of the medians.
    """
    if len(row.values) != len(base.values):
        return row.median / base.median if base.median else float("inf")
    pairs = zip(row.values, base.values, strict=True)
    return median(mine / other if other else float("inf") for mine, other in pairs)
