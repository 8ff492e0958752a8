"""Who asks, and what they may do."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a key may be good for. Each of them lets its owner read."""

    READ = "read"
    ACQUIRE = "acquire"
    """Acquire, renew, release, resize."""
    FORCE = "force"
    """End other people's leases."""
    ADMIN = "admin"
    """All of that, restrictions, placements, keys, the audit, and to see lease ids."""


IMPLIED = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.ACQUIRE: frozenset({Scope.READ, Scope.ACQUIRE}),
    Scope.FORCE: frozenset({Scope.READ, Scope.FORCE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of an API key.

    `prefixes` are directories, with their slash at the end, of any depth; `b""` is everything. What is not
    allowed is refused.
    """

    key_id: str
    name: str
    scopes: frozenset[Scope]
    """With what they imply."""
    prefixes: tuple[bytes, ...]

    def may(self, scope: Scope, name: bytes) -> bool:
        """Whether it has that scope for the resource, or the directory, of that name."""
        return scope in self.scopes and name.startswith(self.prefixes)

    def may_somewhere(self, scope: Scope) -> bool:
        """Whether it has that scope for anything at all."""
        return scope in self.scopes and bool(self.prefixes)

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether it has that scope without bounds."""
        return self.may(scope, b"")
