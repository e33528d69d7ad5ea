"""Structured output: from a grammar to the tokens that may come next.

Owns: compiling grammars (llguidance), checking what one costs, structural tags, a request's constraint.
Never: fills masks on the device (execution does) or queues requests (scheduling does).
"""
