"""Contents of files: in a folder or in a bucket.

Owns: the blob stores and copies between them.
Never: knows who owns a content.
"""
