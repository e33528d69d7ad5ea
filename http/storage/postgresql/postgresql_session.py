"""Connections to PostgreSQL, and what is done when they break."""

from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from palladio.http.wire.errors import ErrorBody
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError

Session: TypeAlias = "psycopg.Connection[dict[str, Any]]"

RETRY_AFTER = 5  # seconds
DATABASE_AWAY = ErrorBody(
    503,
    "the database of --database-url cannot be reached at the moment: send the request again",
    code="database_unavailable",
    headers={"Retry-After": str(RETRY_AFTER)},
)
TABLES_GONE = ErrorBody(
    503,
    "tables of the database of --database-url are missing, or this server may not use them: see its log",
    code="storage_gone",
)
LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,  # a standby's
    psycopg.errors.IdleInTransactionSessionTimeout,  # this process was stopped for a while; an InternalError in psycopg
)

CHANGED = (  # somebody has been at the database while this server ran
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InsufficientPrivilege,
)

# A host that is switched off leaves its connections open: PostgreSQL frees what they hold after this.
_SERVER_OPTIONS = (
    *("tcp_keepalives_idle=10", "tcp_keepalives_interval=5", "tcp_keepalives_count=3"),
    *("idle_in_transaction_session_timeout=30s", r"default_transaction_isolation=read\ committed"),
)
_CLIENT_OPTIONS: dict[str, Any] = {
    "application_name": "palladio",
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 15_000,  # ms
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Connector:
    """Opens connections.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: SecretUrl) -> None:
        self.url = url
        try:
            given = conninfo_to_dict(url.value)
        except psycopg.Error as error:
            raise ConfigError(f"--database-url {url}: {url.hide(str(error)).strip()}") from None
        options = " ".join([*(f"-c {option}" for option in _SERVER_OPTIONS), str(given.pop("options", ""))]).strip()
        self._parameters: dict[str, Any] = _CLIENT_OPTIONS | given | {"options": options}

    def connect(self, *, autocommit: bool = False) -> Session:
        """
        Raises:
            psycopg.OperationalError: it cannot be reached, or refuses.
        """
        session: Session = psycopg.connect(**self._parameters, autocommit=autocommit, row_factory=dict_row)
        return session

    def explain(self, error: Exception) -> str:
        """Why, for the log."""
        return f"{self.url}: {self.url.hide(str(error)).strip()}"
