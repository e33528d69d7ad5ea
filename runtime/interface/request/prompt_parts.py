"""The parts of a prompt: runs of token ids, and media, whose rows stand in the place of token embeddings.

A prompt is one list of ids with a placeholder for each row of a medium, and the media with their places in it. The rows
never travel in a message: the front keeps them in files (`PayloadStore`), and the engine reads those.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from palladio.runtime.interface.errors import InvalidRequestError

PLACEHOLDER_ID: Final = 0  # in every vocabulary; what is computed of it gives way to the row

Rows = npt.NDArray[np.float32]  # [length, D]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """A part of a prompt that has rows of its own, one for each of its positions.

    Attributes:
        start: its first position in the prompt. length: positions.
        width: numbers of a row (D).
        digest: of the content, in hex: media of one digest have the same rows.
        content: the rows, f32[length, D]; in the front alone, and empty from there on.
        path: the file that holds them; empty until the front keeps it.
        is_whole: its positions attend to each other both ways, so one step has to compute all of them.
    """

    start: int = 0
    length: int
    width: int
    digest: str
    content: bytes = b""
    path: str = ""
    is_whole: bool = False

    @classmethod
    def of(cls, rows: Rows, *, is_whole: bool = False) -> Self:
        """Make a part of rows.

        Args:
            rows: [length, D], all of them finite.
        """
        content = np.ascontiguousarray(rows, "<f4").tobytes()
        length, width = rows.shape
        return cls(
            length=length,
            width=width,
            digest=hashlib.sha256(content).hexdigest(),
            content=content,
            is_whole=is_whole,
        )

    @property
    def stop(self) -> int:
        """The position behind it."""
        return self.start + self.length

    def read(self) -> Rows:
        """The rows, from their file; no memory is taken before they are looked at.

        Raises:
            InvalidRequestError: there is no such file: the request has ended.
        """
        try:
            rows: Rows = np.memmap(Path(self.path), np.dtype("<f4"), "r").reshape(-1, self.width)
        except OSError as error:
            message = f"the rows of a part of the prompt cannot be read: {error.strerror}"
            raise InvalidRequestError(message, param="prompt") from error
        return rows


PromptPart = Sequence[int] | Media


def join_parts(parts: Sequence[PromptPart]) -> tuple[list[int], tuple[Media, ...]]:
    """The ids of all positions, and the media at their places."""
    ids: list[int] = []
    media: list[Media] = []
    for part in parts:
        if isinstance(part, Media):
            media.append(dataclasses.replace(part, start=len(ids)))
            ids += [PLACEHOLDER_ID] * part.length
        else:
            ids += part
    return ids, tuple(media)


def text_ids(ids: Sequence[int], media: Sequence[Media]) -> list[int]:
    """The ids without placeholders."""
    kept: list[int] = []
    begin = 0
    for part in media:
        kept += ids[begin : part.start]
        begin = part.stop
    return [*kept, *ids[begin:]]
