"""The version, below everything: any folder may import this file, and it imports nothing of ours."""

from typing import Final

__version__: Final = "0.2.0"
