"""Errors of PostgreSQL as errors of Dibs: what happened, where, and what to do."""

import re

import psycopg
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    NotConfigured,
)

RIGHTS = (
    "GRANT USAGE ON SCHEMA dibs TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dibs TO {role}",
)
"""All grants that a role needs to use the leases."""


class SqlError(Exception):
    """The server's answer is an error; the connection may still be well."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state: str = state
        """The SQLSTATE."""


def sql_error(result: PGresult) -> SqlError:
    """The error that an answer is."""
    state = result.error_field(DiagnosticField.SQLSTATE) or b"XX000"
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return SqlError(state.decode(), message.decode("utf-8", "replace").strip())


def error_of(error: psycopg.Error) -> SqlError:
    """The same, of what psycopg raised."""
    diag = error.diag
    return SqlError(error.sqlstate or diag.sqlstate or "XX000", diag.message_primary or str(error))


def is_worth_another_try(error: SqlError) -> bool:
    """Nothing was done, and doing it again may go well: a deadlock or a serialization failure."""
    return error.state in ("40001", "40P01")


def is_of_the_connection(error: SqlError) -> bool:
    """What the server had prepared for this connection is gone or stale, or it is about to end."""
    return error.state in ("26000", "0A000") or error.state.startswith("57P")


def is_of_unknown_outcome(error: SqlError) -> bool:
    """A pooler reports that its server has gone: the statement may have been executed."""
    return error.state.startswith("08")


def is_of_the_schema(error: SqlError) -> bool:
    """A part of our schema is missing."""
    return error.state in ("3F000", "42883", "42P01", "42703", "42704")


class Unfit(BackendUnavailable):
    """A command of the batch carries what the database can't hold; the others may be well."""


# ---- while connected ------------------------------------------------------------------------------


def explain(error: SqlError, place: str) -> DibsError:
    """The error that callers see instead of the server's own."""
    said = f"({error}, SQLSTATE {error.state})"
    match error.state:
        case "42501":
            grants = "; ".join(RIGHTS).format(role="ROLE")
            return Forbidden(f"{place}: this role may not do that {said}; what it needs: {grants}")
        case "ZDV01":
            return IncompatibleVersion(f"{place}: {error}, by this release; update dibs here")
        case "25006":
            return standby(place)
        case "53100":
            return BackendUnavailable(f"the disk of {place} is full {said}: free some space there")
        case "53300":
            return BackendUnavailable(f"{place} has no connection left {said}")
        case "57014" | "55P03":
            return BackendUnavailable(
                f"{place} ended the statement {said}: another transaction may have kept rows of "
                "schema dibs locked; look for it in pg_stat_activity"
            )
        case _ if error.state[:2] in ("22", "54"):
            return Unfit(f"{place} can't hold a value of it {said}")
        case _ if is_of_the_schema(error):
            return BackendUnavailable(f"schema dibs of {place} is not whole {said}")
        case _:
            return BackendUnavailable(f"{place} could not apply it {said}")


def standby(place: str) -> BackendUnavailable:
    """This server only reads."""
    return BackendUnavailable(
        f"{place} is read-only, such as a standby is: name the primary, or all hosts with "
        "?target_session_attrs=read-write"
    )


def cut_off(error: Exception, place: str) -> BackendUnavailable:
    """The connection ended in the middle of a call."""
    said = _first_line(error)
    return BackendUnavailable(
        f"the connection to {place} broke ({said}); the next call makes another"
    )


def missed(place: str) -> BackendUnavailable:
    """The connection that listens ended."""
    return BackendUnavailable(
        f"the connection that listens to {place} broke: pushes may have been missed"
    )


def no_answer(place: str, seconds: float) -> BackendUnavailable:
    """The server did not answer in time."""
    return BackendUnavailable(f"{place} did not answer within {seconds:g} s")


# ---- while connecting -----------------------------------------------------------------------------

_DENIED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|permission denied|"
    r"role .* does not exist|not permitted to log in|no such user|not allowed|"
    r"certificate authentication",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"database .* does not exist|no such database", re.IGNORECASE)
_READ_ONLY = re.compile(r"session is read-only|server is in hot standby", re.IGNORECASE)


def refused(error: Exception, place: str) -> DibsError:
    """Why there is no connection. libpq reports it as text only, which a server may translate."""
    said = re.sub(r"\s+", " ", str(error)).strip()
    if _DENIED.search(said) or _wants_password(error):
        return Forbidden(
            f"{place} refuses this user: check role, password and pg_hba.conf ({said})"
        )
    if _ABSENT.search(said):
        return NotConfigured(
            f"{place}: there is no such database ({said}); create it with createdb"
        )
    if _READ_ONLY.search(said):
        return standby(place)
    return BackendUnavailable(
        f"{place} can't be reached: check that the server runs and that host and port are right "
        f"({said})"
    )


def _wants_password(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and bool(getattr(error.pgconn, "needs_password", False))


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
