"""`palladio migrate-storage`: moves the records of files, batches and responses from SQLite to PostgreSQL."""

import argparse
import asyncio
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from palladio.commands.parsing import make_parser
from palladio.http.storage.migration import copy_records
from palladio.http.storage.storage import SharedDatabase, migrating
from palladio.http.wire.errors import HttpError
from palladio.http.wire.secret_url import SecretUrl
from palladio.launch_server import report_error
from palladio.runtime.interface.errors import ConfigError, PalladioError


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "migrate-storage",
        "Copies what a server has kept in --file-storage-path (records of files, batches and stored responses) to the "
        "PostgreSQL of --database-url. Stop the server first.",
        ["palladio migrate-storage --file-storage-path DIR --database-url postgresql://USER@HOST/DATABASE"],
        {1: "it broke off: the same command goes on", 2: "a wrong flag, or a server uses the directory"},
        more="Contents of files stay in the directory, which then belongs to that database: start servers with both "
        "flags.\nThe same command again copies what is missing, and else nothing. palladio.db is left as it is.",
    )
    found.add_argument("--file-storage-path", metavar="DIR", type=Path, required=True, help="the server's directory")
    found.add_argument("--database-url", metavar="URL", required=True, help="postgresql://USER:PASSWORD@HOST/DATABASE")
    return found


def migrate_storage(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    folder, url = args.file_storage_path.expanduser(), SecretUrl(args.database_url)
    try:
        if not (folder / "palladio.db").is_file():
            raise ConfigError(f"--file-storage-path {folder}: no palladio.db is there, so nothing can be migrated")
        with migrating(folder, SharedDatabase(url, num_connections=1)) as migration:
            migration.claim(asyncio.run(copy_records(migration.source, migration.target, _tell)))
    except PalladioError as error:
        return report_error(error)
    except (sqlite3.Error, OSError, HttpError) as error:
        told = error.body.message if isinstance(error, HttpError) else error
        print(f"error: {told}; the same command goes on", file=sys.stderr)
        return 1
    print(f"Start the servers with --file-storage-path {folder} --database-url {url}")
    return 0


def _tell(table: str, num_rows: int, num_new: int) -> None:
    print(f"{table + ':':<16}{num_rows:>9} rows, {num_new} copied, {num_rows - num_new} there already", flush=True)
