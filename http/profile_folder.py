"""ProfileFolder: where profiles may be written. A client names a folder in it, and nothing outside."""

import tempfile
import time
from pathlib import Path

from palladio.runtime.errors import InvalidRequestError


class ProfileFolder:
    """
    Args:
        folder: --profile-folder; None: a new one in the temporary directory, made when it is first needed.
    """

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None else Path(folder).expanduser().absolute()

    def place(self, name: str | None) -> str:
        """The absolute path of a profile's folder, which need not exist. It may block for the disk.

        Args:
            name: of a folder in this one, or its absolute path; None: one named after the time.

        Raises:
            InvalidRequestError: it lies elsewhere, or the temporary directory cannot be written.
        """
        root = self._root()
        try:
            path = (root / (name or time.strftime("profile-%Y%m%d-%H%M%S"))).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links (RuntimeError before Python 3.13)
            raise InvalidRequestError(f"output_dir is no path: {error}", param="output_dir") from error
        if not path.is_relative_to(root):
            raise InvalidRequestError(
                f"output_dir must be the name of a folder in {root}; --profile-folder sets where profiles are written",
                param="output_dir",
            )
        return str(path)

    def _root(self) -> Path:
        if self._path is None:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="palladio-profiles-"))  # for its owner alone
            except OSError as error:
                raise InvalidRequestError(
                    f"the temporary directory cannot be written ({error.strerror}): set --profile-folder",
                    param="output_dir",
                ) from error
        return self._path.resolve()
