"""`palladio migrate-storage`: copies the records of files, batches and responses from SQLite to PostgreSQL, and the
contents of files from the folder to a bucket."""

import argparse
import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import make_parser
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.rules import require
from palladio.http.storage.blobs.blob_bucket import open_bucket
from palladio.http.storage.blobs.blob_copy import copy_blobs
from palladio.http.storage.blobs.blob_folder import FolderBlobs
from palladio.http.storage.blobs.blob_store import BlobStore
from palladio.http.storage.postgresql.migration import copy_records
from palladio.http.storage.records.store import identity_of
from palladio.http.storage.storage import SharedDatabase, Storage, migrating
from palladio.http.wire.errors import HttpError
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.server.launch import report_error


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "migrate-storage",
        "Copies what a server has kept in --file-storage-path: records of files, batches and stored responses to the "
        "PostgreSQL of --database-url, contents of files to the bucket of --blob-store. Stop the server first.",
        [
            "palladio migrate-storage --file-storage-path DIR --database-url postgresql://USER@HOST/DATABASE",
            "palladio migrate-storage --file-storage-path DIR --blob-store s3://BUCKET/PREFIX",
        ],
        {1: "it broke off: the same command goes on", 2: "a wrong flag, or a server uses the directory"},
        more="With --database-url, the directory then belongs to that database. Start servers with the same flags as "
        "this command.\nThe same command again copies what is missing, and else nothing. The directory's own database "
        "and files are left as they are.",
    )
    found.add_argument("--file-storage-path", metavar="DIR", type=Path, required=True, help="the server's directory")
    found.add_argument("--database-url", metavar="URL", help="postgresql://USER:PASSWORD@HOST/DATABASE")
    found.add_argument(
        "--blob-store", metavar="URL", help="s3://BUCKET/PREFIX, gs://… or az://…, for contents of files"
    )
    return found


def migrate_storage(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    folder = args.file_storage_path.expanduser()
    url = None if args.database_url is None else SecretUrl(args.database_url)
    try:
        require(
            url is not None or args.blob_store is not None, "give --database-url, --blob-store or both: where to copy"
        )
        if not (folder / "palladio.db").is_file():
            raise ConfigError(f"--file-storage-path {folder}: no palladio.db is there, so nothing can be migrated")
        bucket = None if args.blob_store is None else _open(HttpConfig(blob_store=args.blob_store), folder)
        if url is None:
            with contextlib.closing(Storage(folder)) as storage:
                identity = asyncio.run(storage.database.run(identity_of))
                asyncio.run(_copy_contents(storage.blobs, bucket, identity))
        else:
            with migrating(folder, SharedDatabase(url, num_connections=1)) as migration:
                identity = asyncio.run(copy_records(migration.source, migration.target, _report))
                asyncio.run(_copy_contents(FolderBlobs(folder / "files", begun=0.0), bucket, identity))
                migration.claim(identity)
    except PalladioError as error:
        return report_error(error)
    except (sqlite3.Error, OSError, HttpError) as error:
        what = error.body.message if isinstance(error, HttpError) else error
        print(f"error: {what}; the same command goes on", file=sys.stderr)
        return 1
    flags = {"--file-storage-path": folder, "--database-url": url, "--blob-store": args.blob_store}
    print("Start the servers with", *(f"{flag} {value}" for flag, value in flags.items() if value is not None))
    return 0


def _open(config: HttpConfig, folder: Path) -> BlobStore:
    assert config.blob_store is not None
    largest = max((path.stat().st_size for path in folder.glob("files/*")), default=0)
    return open_bucket(config.blob_store, largest)


async def _copy_contents(source: BlobStore, bucket: BlobStore | None, identity: str) -> None:
    """Copy the contents of files to the bucket.

    Args:
        identity: identity of the database that the bucket will belong to.
    """
    if bucket is not None:
        await bucket.check(identity)
        copied = await copy_blobs(source, bucket)
        print(f"contents:{copied.num_copied + copied.num_there:>16} files, {copied.num_copied} copied "
              f"({copied.num_bytes} bytes), {copied.num_there} there already")  # fmt: skip


def _report(table: str, num_rows: int, num_new: int) -> None:
    print(f"{table + ':':<16}{num_rows:>9} rows, {num_new} copied, {num_rows - num_new} there already", flush=True)
