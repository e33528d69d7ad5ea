"""The tables of the database: those of the first version, and how each later version changes them."""

_FILES = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY,
    position TEXT NOT NULL UNIQUE,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS file_holds (
    file_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    PRIMARY KEY (file_id, holder)
) STRICT, WITHOUT ROWID;
"""
_BATCHES = """
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    output_file_id TEXT,
    error_file_id TEXT,
    model TEXT,
    metadata TEXT,
    errors TEXT,
    output_expires_after INTEGER,
    total INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    total_tokens INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS batch_results (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    line INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (batch_id, line)
) STRICT;
CREATE TABLE IF NOT EXISTS batch_crashes (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    line INTEGER NOT NULL,
    num_crashes INTEGER NOT NULL,
    PRIMARY KEY (batch_id, line)
) STRICT;
"""
_RESPONSES = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    previous TEXT,
    status TEXT NOT NULL,
    response BLOB NOT NULL,
    request BLOB,
    attempts INTEGER NOT NULL DEFAULT 0,
    events BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS unfinished_responses ON responses (number) WHERE request IS NOT NULL;
CREATE TABLE IF NOT EXISTS response_items (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    is_output INTEGER NOT NULL,
    id TEXT NOT NULL,
    item BLOB NOT NULL,
    PRIMARY KEY (response, is_output, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS response_items_by_id ON response_items (id);
"""

# Owners of objects; objects from before have none.
_OWNERS = """
ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX files_by_owner ON files (owner, position);
CREATE INDEX batches_by_owner ON batches (owner, id);
CREATE INDEX responses_by_owner ON responses (owner, number);
"""

_SETTINGS = """
CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
"""

# What several servers need to know of each other. Batches that run are read once more: their ranges of lines are made
# from that, and lines that have results keep them.
_SERVERS = """
CREATE TABLE servers (
    id TEXT PRIMARY KEY,
    lease_until REAL NOT NULL
) STRICT;
CREATE TABLE batch_ranges (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    first_line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    server TEXT,
    PRIMARY KEY (batch_id, first_line)
) STRICT;
ALTER TABLE responses ADD COLUMN server TEXT;
UPDATE batches SET status = 'validating' WHERE status = 'in_progress';
"""

# When a server may conclude from the leases of others that these have ended.
_LEASES = """
ALTER TABLE servers ADD COLUMN judges_from REAL NOT NULL DEFAULT 0;
ALTER TABLE servers ADD COLUMN judges_until REAL NOT NULL DEFAULT 0;
"""

# Made if they are missing, and then changed: what a later version needs is a script more at the end of CHANGES.
SCHEMA = _FILES + _BATCHES + _RESPONSES
CHANGES = (_OWNERS, _SETTINGS, _SERVERS, _LEASES)
