"""Settings of the HTTP server.

Owns: HttpConfig, ObservabilityConfig, limits of requests, uvicorn's log configuration.
Never: reads the environment, or imports a route.
"""
