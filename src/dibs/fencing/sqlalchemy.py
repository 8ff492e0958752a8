"""A SQLAlchemy connection or session, as the SQL guard uses one."""

from typing import Any


class SqlAlchemyConnection:
    """Runs the guard's statements in the transaction of a SQLAlchemy connection or session.

    Its only cursor is itself. The first statement begins a transaction, as any other statement would.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._result: Any = None
        self.driver: Any = connection.connection.dbapi_connection
        """The driver's connection; for asyncio the one that SQLAlchemy makes of it."""
        self.paramstyle: str = connection.dialect.paramstyle
        self.rowcount: int = -1

    def cursor(self) -> "SqlAlchemyConnection":
        return self

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> None:
        self._result = self._connection.exec_driver_sql(statement, parameters or None)
        self.rowcount = self._result.rowcount

    def fetchone(self) -> Any:
        return self._result.fetchone()

    def close(self) -> None:
        if self._result is not None:
            self._result.close()


def adapted(connection: Any) -> Any:
    """The connection itself, or an adapter if it is a connection or session of SQLAlchemy."""
    if hasattr(connection, "get_bind"):  # a session
        connection = connection.connection()
    return (
        SqlAlchemyConnection(connection) if hasattr(connection, "exec_driver_sql") else connection
    )
