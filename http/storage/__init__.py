"""What the server keeps on disk.

Owns: the database and its thread, the storage folder, ids, pages of lists, errors of the disk.
Never: knows what is stored: files, batches and responses bring their own tables.
"""
