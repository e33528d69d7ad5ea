"""OpenAI's and SGLang's routes that need no storage, and probes, control and metrics.

Owns: one file a route or a family of routes; each checks a body, calls the rooms below and words the answer.
Never: holds logic that a second route would need.
"""
