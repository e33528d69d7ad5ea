"""What is noted about a request.

Owns: the request record, the request log, recent errors, spans.
Never: shows anything but log lines and traces.
"""
