"""Records in PostgreSQL, which several servers share.

Owns: sessions, locks, heartbeats, time limits, and copying what SQLite had.
Never: is imported unless --database-url asks for it.
"""
