"""A client of HTTP servers that stream: few lines, quick to import, and cheap enough to load a server with.

Standard library only; it follows no redirects and asks no proxy.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from palladio.runtime.interface.errors import ConfigError, PalladioError

_READ = 1 << 16  # bytes at a time
_FEATURES: Final = {"Accept": "*/*", "User-Agent": "palladio"}


class ClientError(PalladioError):
    """No answer, or half of one; the message says from whom."""


class Response:
    """An answer whose body is still on its way: read it once, whole or by lines.

    Attributes:
        headers: by lower-case names.
    """

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.is_whole = False  # its body has been read to the end
        self._reader = reader

    @property
    def keeps_alive(self) -> bool:
        return self.is_whole and self.headers.get("connection", "").lower() != "close"

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self._pieces()])

    async def lines(self) -> AsyncIterator[bytes]:
        """Without their ends."""
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
        if rest:
            yield rest

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects of server-sent events, up to [DONE]."""
        async for line in self.lines():
            if line.startswith(b"data:") and not line.endswith(b"[DONE]"):
                event = json.loads(line[5:])
                if isinstance(event, dict):
                    yield event

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif "content-length" in self.headers:
            left = int(self.headers["content-length"])
            while left:
                piece = await self._reader.read(min(left, _READ))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
        elif self.status not in (204, 304):
            while piece := await self._reader.read(_READ):
                yield piece
            return  # the end of the connection is the end of the body
        self.is_whole = True


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpClient:
    """A client of one server; keeps connections open for further requests.

    Args:
        base_url: such as http://127.0.0.1:30000/v1; without a path, /v1 is meant.
        api_key: sent as a bearer token; None: none is.

    Raises:
        ConfigError: base_url is no such address.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--base-url {base_url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url {base_url} must be an address such as http://127.0.0.1:30000/v1")
        self._host, self._port = parts.hostname, port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path.rstrip("/") or "/v1"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = dict(_FEATURES) | {"Host": parts.netloc.rpartition("@")[2]}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._idle: list[_Connection] = []
        self.base_url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.root = self._path.removesuffix("/v1")  # where /health and the like are

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of a whole answer; path as in `stream`."""
        async with self.stream(method, path, body) as response:
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, body: object = None) -> AsyncIterator[Response]:
        """Send a request and stream its answer. Leaving it early closes the connection, so the server stops.

        Args:
            path: below the base URL's; one that begins with / is from the server's root.
            body: sent as JSON; None: no body.

        Raises:
            ClientError: the server cannot be reached, or breaks off.
        """
        connection: _Connection | None = None
        try:
            connection, response = await self._send(method, path, body)
            yield response
            if response.keeps_alive:
                self._idle.append(connection)
                connection = None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            reason = "it broke off" if isinstance(error, EOFError) else str(error)
            raise ClientError(f"{self.base_url} does not answer: {reason}") from error
        finally:
            if connection is not None:
                connection[1].close()

    async def _send(self, method: str, path: str, body: object) -> tuple[_Connection, Response]:
        request = self._request(method, path, body)
        while self._idle:
            connection = self._idle.pop()
            try:
                return connection, await self._exchange(connection, request)
            except (OSError, EOFError):
                connection[1].close()  # the server had closed it meanwhile
        connection = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            return connection, await self._exchange(connection, request)
        except BaseException:
            connection[1].close()
            raise

    async def _exchange(self, connection: _Connection, request: bytes) -> Response:
        reader, writer = connection
        writer.write(request)
        await writer.drain()
        status = 100
        while status < 200:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip().split("\r\n")
            status = int(f"{first} ".split(" ")[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Response(reader, status, headers)

    def _request(self, method: str, path: str, body: object) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if body is not None:
            headers |= {"Content-Type": "application/json"}
        if body is not None or method == "POST":
            headers |= {"Content-Length": str(len(content))}
        target = path if path.startswith("/") else f"{self._path}/{path}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


async def first_model(client: HttpClient) -> str:
    """Raises ClientError: the server lists none, or does not answer."""
    status, content = await client.ask("GET", "models")
    if status != 200:
        raise ClientError(f"{client.base_url}/models: {describe_failure(status, content)}")
    models = decode(content).get("data") or []
    if not models:
        raise ClientError(f"{client.base_url}/models lists no model: give --model")
    return str(models[0]["id"])


def decode(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises ClientError: it is none."""
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ClientError(f"no JSON: {content[:100].decode(errors='replace')!r}") from error
    if not isinstance(found, dict):
        raise ClientError(f"no JSON object: {content[:100].decode(errors='replace')!r}")
    return found


def describe_failure(status: int, body: bytes) -> str:
    """What a server says of a refusal, in words: OpenAI's error bodies, FastAPI's, or the beginning of a text."""
    try:
        found = json.loads(body)
    except ValueError:
        found = body.decode(errors="replace").strip()[:300]
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return f"HTTP {status}: {found or 'no reason given'}"
