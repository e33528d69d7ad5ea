"""What a caller asks for.

Owns: the request and its parts: prompt, sampling parameters, grammar, embeddings, fields of other servers.
Never: holds anything that changes while the request runs.
"""
