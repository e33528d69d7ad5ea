"""What is noted about requests, and how it is shown.

Owns: the request record, metrics and their text, the request log, traces, explanations.
Never: changes what a request gets.
"""
