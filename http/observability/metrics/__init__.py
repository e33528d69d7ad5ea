"""/metrics.

Owns: the metrics of front and engine, their text, and the names that routers ask for.
Never: notes anything about one request.
"""
