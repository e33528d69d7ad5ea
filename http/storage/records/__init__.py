"""Records in a database, whichever it is.

Owns: the database and its thread, SQLite, schemas, stores, lists, errors of the disk, attempts again.
Never: knows what is stored, or where contents are.
"""
