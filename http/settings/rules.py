"""What values of flags have to be."""

from palladio.runtime.interface.errors import ConfigError


def require(holds: bool, message: str) -> None:
    """
    Raises:
        ConfigError: with this message, which names the flag: the rule does not hold.
    """
    if not holds:
        raise ConfigError(message)
