"""Signatures as users read them, in the Python reference.

* `Coroutine[Any, Any, T]` is `async` and `T`.
* Options that are not given show their default, instead of `UNSET`.
* Parameters that exist for type checkers and for messages only (`*more: Never`, `**others`) are left out.
"""

import re
from typing import Any

import griffe

from dibs import LeaderConfig, LockConfig, TaskLockConfig

HIDDEN = {"more", "others"}
MADE_BY_DIBS = {
    *(
        "LeaseBase",
        "RWLeaseBase",
        "TaskLeaseBase",
        "TermBase",
        "CampaignBase",
        "LeasesBase",
        "Client",
    ),
}
"""Classes that users get and never construct. Exceptions are among them."""
CONFIGS = {
    "PrimitiveBase": LockConfig(),
    "LockBase": LockConfig(),
    "TaskLockBase": TaskLockConfig(),
    "ElectionBase": LeaderConfig(),
}


class Signatures(griffe.Extension):
    """Changes functions when griffe has loaded them."""

    def on_class_members(self, *, cls: griffe.Class, **about: Any) -> None:
        """Hide a constructor that users never call."""
        if cls.name in MADE_BY_DIBS or cls.canonical_path.startswith("dibs.errors."):
            cls.members.pop("__init__", None)

    def on_function(self, *, func: griffe.Function, **about: Any) -> None:
        """Make the signature of one function readable."""
        for name in HIDDEN & {each.name for each in func.parameters}:
            del func.parameters[name]
        config = CONFIGS.get(func.parent.name) if func.parent and func.name == "__init__" else None
        for each in func.parameters:
            if str(each.default) == "UNSET" and hasattr(config, each.name):
                value = getattr(config, each.name)
                each.default = repr(int(value) if isinstance(value, float) else value)
            each.annotation = plain(each.annotation)
        if str(func.returns).startswith("Coroutine["):
            func.returns = func.returns.slice.elements[-1]  # type: ignore[union-attr]
            func.labels.add("async")
        func.returns = plain(func.returns)


def plain(annotation: Any) -> Any:
    """The annotation without `Unset`, and `Unpack[LockOptions[Lease]]` as `LockOptions`."""
    if isinstance(annotation, griffe.ExprBinOp) and str(annotation.right) == "Unset":
        return plain(annotation.left)
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left = plain(annotation.left)
    if unpacked := re.match(r"Unpack\[(\w+)", str(annotation)):
        return unpacked[1]
    return annotation
