"""Requests that run, as callers see them.

Owns: the protocol of the engine, the table of requests, samples as text, payloads, scores, SGLang's native form.
Never: starts an engine.
"""
