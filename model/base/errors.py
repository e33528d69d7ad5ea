"""The root of Palladio's errors, and those of what a model is made from. The others: `runtime/interface/errors.py`."""


class PalladioError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(PalladioError, ValueError):
    """A flag, an engine setting or a config.json asks for something that cannot be done; names the key and value."""


class CheckpointError(ConfigError):
    """The checkpoint on disk is not what its config.json promises. The message names the tensor and the file."""


class ReadBackError(PalladioError):
    """A device holds other weights than were read from the files."""


class MissingKeysError(CheckpointError):
    """Tensors of the model are not in the checkpoint.

    Attributes:
        shown: some of their names.
    """

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.shown = shown
