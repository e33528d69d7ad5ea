"""Counts HTTP requests and answers, by route template: a raw path would make a label of every id."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.http.observability.front_metrics import FrontMetrics

NO_ROUTE = "(none)"


class CountRequests:
    """Pure ASGI middleware, inside RequestMiddleware."""

    def __init__(self, app: ASGIApp, metrics: FrontMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, method, status = self._metrics, scope["method"], 500  # what the border makes of an exception

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.http_active += 1
        try:
            await self._app(scope, receive, noting_status)
        finally:
            metrics.http_active -= 1
            endpoint = scope["route"].path.replace(":path", "") if "route" in scope else NO_ROUTE
            known = method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH") else "other"
            metrics.http_requests[endpoint, known] += 1
            metrics.http_responses[endpoint, known, status] += 1
