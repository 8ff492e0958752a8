"""Statements as libpq takes them: values are texts on the way there, Python's own on the way back."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult

from dibs.stores.postgres.trouble import SqlError

_TEXT = 25
"""PostgreSQL's number of the type text."""

type Values = Sequence[str | None]
type Rows = list[tuple[Any, ...]]


class Statement:
    """One statement, and the name under which a server keeps it ready. It says what each `%s` is."""

    __slots__ = ("name", "sql", "text")

    def __init__(self, name: str, text: str) -> None:
        first, *others = text.split("%s")
        numbers = count(1)
        self.text = first + "".join(f"${next(numbers)}{part}" for part in others)
        self.name = name.encode()
        self.sql = self.text.encode()


def dump(values: Values) -> list[bytes | None]:
    """Values as libpq sends them. Raises `SqlError` for what PostgreSQL can't hold."""
    plain: list[bytes | None] = []
    for value in values:
        if value is not None and "\0" in value:
            raise SqlError(
                "22021", "a text can't hold the character NUL"
            )  # libpq would cut it there
        plain.append(None if value is None else value.encode())
    return plain


def load(result: PGresult) -> Rows:
    """The rows of an answer."""
    if result.ntuples == 1 and result.nfields == 1 and result.ftype(0) == _TEXT:
        value = result.get_value(0, 0)  # as most answers are: a sixth of what is below
        return [(None if value is None else value.decode(),)]
    transformer = Transformer()
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
