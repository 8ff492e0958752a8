"""Signatures as users read them, in the Python reference.

* `Coroutine[Any, Any, T]` and `Acquisition[T]` are `async` and `T`.
* Options that are not given show their default, instead of `UNSET`.
* Parameters that exist for type checkers and for messages only (`*more: Never`, `**others`) are left out.
"""

import re
from dataclasses import fields
from typing import Any

import griffe

from dibs import LeaderConfig, LockConfig, TaskLockConfig

HIDDEN = {"more", "others"}
MADE_BY_DIBS = (
    *("LeaseBase", "RWLeaseBase", "TaskLeaseBase", "TermBase"),
    *("CampaignBase", "LeasesBase", "Client"),
)
"""Classes that users get and never construct. Exceptions are among them."""
VARIABLES = {"LeaseT": "Lease", "TermT": "Term", "ReadT": "Reading", "WriteT": "Writing"}
"""Type variables, and what stands for any of their types."""

DEFAULTS = {
    primitive: {each.name: each.default for each in fields(config)}
    for primitive, config in (
        ("PrimitiveBase", LockConfig),
        ("TaskLockBase", TaskLockConfig),
        ("ElectionBase", LeaderConfig),
    )
}
"""Defaults of the options of constructors, by the class that has the constructor."""


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
        defaults = DEFAULTS.get(func.parent.name if func.parent else "", {})
        for each in func.parameters:
            if str(each.default) == "UNSET" and func.name == "__init__" and each.name in defaults:
                value = defaults[each.name]
                each.default = repr(int(value) if isinstance(value, float) else value)
            each.annotation = plain(each.annotation)
        if found := re.match(r"Coroutine\[Any, Any, (.+)\]|Acquisition\[(.+)\]", str(func.returns)):
            inner = func.returns.slice  # type: ignore[union-attr]
            func.returns = inner.elements[-1] if found[1] else inner
            func.labels.add("async")
        func.returns = plain(func.returns)

    def on_attribute(self, *, attr: griffe.Attribute, **about: Any) -> None:
        """Make the type of one attribute readable."""
        attr.annotation = plain(attr.annotation)


def plain(annotation: Any) -> Any:
    """The annotation without `Unset` and type variables; `Unpack[LockOptions[Lease]]` is `LockOptions`."""
    if isinstance(annotation, griffe.Expr):
        for each in annotation.iterate(flat=True):
            if isinstance(each, griffe.ExprName):
                each.name = VARIABLES.get(each.name, each.name)
    if isinstance(annotation, griffe.ExprBinOp) and str(annotation.right) == "Unset":
        return plain(annotation.left)
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left = plain(annotation.left)
    if unpacked := re.match(r"Unpack\[(\w+)", str(annotation)):
        return unpacked[1].removeprefix("Client")  # it adds `client`
    return annotation
