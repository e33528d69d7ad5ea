"""Who may ask, and at what cost before a request is served.

Owns: API keys and owners, rules for browsers, TLS, limits of connections, heads and slow readers.
Never: looks into a body.
"""
