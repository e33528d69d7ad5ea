"""Faults of databases that servers share, and of what they do for each other."""

from tests.faults.fault import Fault

_DATABASE = ("tests/http/storage/test_postgresql.py",)
_LEASES = ("tests/http/storage/test_leases.py",)
_BATCHES = ("tests/http/batches/test_many_servers.py",)
_RESPONSES = ("tests/http/responses/test_many_servers.py",)
_MIGRATION = ("tests/palladio/commands/test_migrate_storage.py",)

DATABASE_FAULTS = (
    Fault(
        "what a dead server claimed is never answered",
        "http/batches/batch_claims.py",
        "is_free, values = left_by_others(connection, me)",
        'is_free, values = "server IS NULL", ()',
        _BATCHES,
    ),
    Fault(
        "each server answers all lines",
        "http/batches/batch_claims.py",
        "is_free, values = left_by_others(connection, me)",
        'is_free, values = "(server IS NULL OR server <> ?)", (me,)',
        _BATCHES,
    ),
    Fault(
        "after an outage, the first server that is back takes the others for dead",
        "http/storage/store.py",
        " OR me.id IS NULL OR NOT {clock} BETWEEN me.judges_from AND me.judges_until",
        " OR me.id IS NULL",
        _LEASES,
    ),
    Fault(
        "a server that has just renewed its lease after an outage takes the others for dead",
        "http/storage/postgresql.py",
        "THEN servers.judges_from ELSE excluded.lease_until END",
        "THEN servers.judges_from ELSE servers.judges_from END",
        _LEASES,
    ),
    Fault(
        "amid an outage, a server whose lease has not ended takes one whose has for dead",
        "http/storage/postgresql.py",
        "now + %(lease)s / 2",
        "now + %(lease)s",
        _LEASES,
    ),
    Fault(
        "a server that starts after an outage takes the others for dead",
        "http/storage/postgresql.py",
        "extract(epoch FROM pg_postmaster_start_time()) + %(lease)s",
        "0",
        _LEASES,
    ),
    Fault(
        "a batch ends while other servers have its last lines",
        "http/batches/batch_store.py",
        "if not is_expired and connection.execute(query, (batch_id,)).fetchone() is not None:",
        "if is_expired and connection.execute(query, (batch_id,)).fetchone() is not None:",
        _BATCHES,
    ),
    Fault(
        "a late result changes the counts of a batch that has ended",
        "http/batches/batch_store.py",
        " AND status IN ('in_progress', 'cancelling')\"",
        '"',
        _BATCHES,
    ),
    Fault(
        "a cancel does not reach the servers that run the batch",
        "http/batches/batch_worker.py",
        "if batch_id not in self._tasks or (is_cancelling and batch_id not in self._cancelling):",
        "if batch_id not in self._tasks:",
        _BATCHES,
    ),
    Fault(
        "a server whose engine is dead keeps its lines",
        "http/batches/batch_worker.py",
        'if self._context.engine.state != "dead":',
        'if self._context.engine.state != "gone":',
        _BATCHES,
    ),
    Fault(
        "a batch's window follows the host's clock",
        "http/storage/postgresql.py",
        "        return time.monotonic() + self._clock_offset",
        "        return time.time()",
        _BATCHES,
    ),
    Fault(
        "a transaction is not done again when its connection was dead",
        "http/storage/postgresql.py",
        "_ATTEMPTS = 6",
        "_ATTEMPTS = 1",
        _DATABASE,
    ),
    Fault(
        "a process gives a lock to itself twice",
        "http/storage/postgresql_locks.py",
        "            self._held.add(name)",
        "            self._held.discard(name)",
        _DATABASE,
    ),
    Fault(
        "an error shows the database's password",
        "http/wire/secret_url.py",
        '_USER.sub(rf"\\1:{_HIDDEN}@", value)',
        "value",
        _DATABASE,
    ),
    Fault(
        "two databases share a folder, and each removes the other's contents",
        "http/storage/storage.py",
        'if _owner(lock) not in ("", identity):',
        'if _owner(lock) == "-":',
        _DATABASE,
    ),
    Fault(
        "a response that another server makes is made twice",
        "http/storage/store.py",
        'return f"(server IS NULL OR (server <> ? AND server NOT IN ({alive})))", (server, server)',
        'return "(server IS NULL OR server <> ?)", (server,)',
        _RESPONSES,
    ),
    Fault(
        "a response that was cancelled elsewhere goes on",
        "http/responses/unfinished_responses.py",
        "                    await self._background.drop(response_id)",
        "                    self.withdraw(response_id)",
        _RESPONSES,
    ),
    Fault(
        "a migration forgets all rows behind the first hundred",
        "http/storage/migration.py",
        "            last = tuple(rows[-1][name] for name in order)",
        '            last = ("~",) * len(order)',
        _MIGRATION,
    ),
    Fault(
        "whoever has ended for certain is waited for until its lease ends",
        "http/server.py",
        "                await storage.database.sign_off(before)",
        "                pass",
        ("tests/http/test_leading.py",),
    ),
    Fault(
        "signing a server off frees nothing",
        "http/storage/postgresql.py",
        "[(server,) for server in servers]",
        '[(f"{server}-",) for server in servers]',
        (*_DATABASE, *_BATCHES),
    ),
    Fault(
        "tokens are made for a response that cannot be stored",
        "http/responses/routes_responses.py",
        "    if body.store is not False:\n        database.check()",
        "    if body.store is False:\n        database.check()",
        ("tests/http/files/test_storage_failures.py",),
    ),
    Fault(
        "missing tables are a defect of the server",
        "http/storage/postgresql_session.py",
        "    psycopg.errors.UndefinedTable,\n",
        "",
        _DATABASE,
    ),
    Fault(
        "missing tables are told again and again",
        "http/storage/postgresql.py",
        "            self._told[what] = now\n",
        "",
        _DATABASE,
    ),
    Fault(
        "a batch cannot go on after the database was away, until it has tried once",
        "http/storage/postgresql_locks.py",
        "            if not is_new:",
        "            if is_new and False:",
        _DATABASE,
    ),
    Fault(
        "failures of the database are not counted",
        "http/storage/store.py",
        "store._database.note_failure(code_of(error))",
        "code_of(error)",
        ("tests/http/files/test_storage_failures.py",),
    ),
    Fault(
        "asyncio writes a traceback for each request that its client gives up while the database is away",
        "http/storage/database.py",
        "        result.add_done_callback(_end_quietly)\n",
        "",
        ("tests/http/storage/test_database.py",),
    ),
)
