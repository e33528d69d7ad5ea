"""What the HTTP server is told by flags.

Owns: HttpConfig, ObservabilityConfig, limits of requests, uvicorn's log configuration.
Never: reads the environment, or imports a route.
"""
