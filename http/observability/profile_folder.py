"""ProfileFolder: where profiles may be written. A client names a folder in it, and nothing outside."""

import errno
import logging
import shutil
import tempfile
import time
from pathlib import Path

from palladio.runtime.interface.errors import InvalidRequestError

NUM_KEPT = 3  # profiles in a temporary folder; in --profile-folder nothing is removed

logger = logging.getLogger(__name__)


class ProfileFolder:
    """
    Args:
        folder: --profile-folder; None: a new one in the temporary directory, made when it is first needed. It holds the
            last NUM_KEPT profiles, and goes with the server.
    """

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None else Path(folder).expanduser().absolute()
        self._temporary: Path | None = None

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
            _check_links(path)
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links (RuntimeError before Python 3.13)
            raise InvalidRequestError(f"output_dir is not a valid path: {error}", param="output_dir") from error
        if not path.is_relative_to(root):
            raise InvalidRequestError(
                f"output_dir must be the name of a folder in {root}; --profile-folder sets where profiles are written",
                param="output_dir",
            )
        return str(path)

    def began(self, place: str) -> None:
        """A profile is under way there: in a temporary folder it takes the place of the oldest one. It may block."""
        if self._temporary is None:
            return
        root = self._temporary.resolve()
        logger.info("The profile in %s is deleted when the server stops; set --profile-folder to keep profiles", place)
        try:
            others = [entry for entry in root.iterdir() if not Path(place).is_relative_to(entry)]
            others.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        except OSError as error:
            logger.warning("Cannot remove old profiles in %s: %s", root, error.strerror)
            return
        for entry in others[NUM_KEPT - 1 :]:
            shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """The server ends, and with it a temporary folder."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._path = self._temporary = None

    def _root(self) -> Path:
        if self._path is None:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="palladio-profiles-"))  # for its owner alone
            except OSError as error:
                raise InvalidRequestError(
                    f"the temporary directory cannot be written ({error.strerror}): set --profile-folder",
                    param="output_dir",
                ) from error
            self._temporary = self._path
        return self._path.resolve()


def _check_links(path: Path) -> None:
    """Raises OSError for a loop of links, which `Path.resolve` lets pass since Python 3.13."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
