"""Contents in pieces."""

from collections.abc import AsyncGenerator


async def one_piece(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content
