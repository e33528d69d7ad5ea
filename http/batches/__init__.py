"""OpenAI's /v1/batches: lines of a file run as background requests.

Owns: the batch's life in the database, the worker, retries, result files.
Never: loses or doubles a line: results and progress are one transaction.
"""
