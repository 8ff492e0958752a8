"""The reference of the metrics, made from those that a server has."""

import inspect

from prometheus_client import CollectorRegistry

from dibs.server.metrics import Metrics

INTRO = """\
# Metrics

`GET /metrics` of a server has these metrics, for Prometheus. See [Operating a server](../operations.md) for
who can read them. Counters end in `_total`. Histograms have `_bucket`, `_sum` and `_count`.

| metric | type | labels | |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    needed = inspect.signature(Metrics).parameters.values()
    current = {each.name: float for each in needed if each.kind is each.KEYWORD_ONLY}
    metrics = Metrics((), str, **current)
    registry: CollectorRegistry = metrics._registry
    labels = {
        collector._name: collector._labelnames
        for collector in registry._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    rows = []
    for each in sorted(
        registry.collect(), key=lambda it: (not it.name.startswith("dibs_"), it.name)
    ):
        name = f"{each.name}_total" if each.type == "counter" else each.name
        named = ", ".join(f"`{label}`" for label in labels.get(each.name, ()))
        rows.append(f"| `{name}` | {each.type} | {named} | {each.documentation.rstrip('.')} |")
    return INTRO + "\n".join(rows) + "\n"
