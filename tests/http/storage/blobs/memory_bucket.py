"""A bucket in memory that can go away."""

import dataclasses
import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import obstore.exceptions
import obstore.store

from palladio.http.storage.blobs.blob_bucket import BucketBlobs


@dataclasses.dataclass
class Flaky:
    """In the place of the module obstore.

    Attributes:
        failing: names of its calls that fail, with this error.
        ahead: of the bucket's clock, before this host's.
        reached, go_on: `put` sets one, and waits for the other before it begins.
    """

    failing: dict[str, Exception] = dataclasses.field(default_factory=dict)
    ahead: datetime.timedelta = datetime.timedelta()
    reached: threading.Event = dataclasses.field(default_factory=threading.Event)
    go_on: threading.Event = dataclasses.field(default_factory=threading.Event)
    exceptions = obstore.exceptions

    def __post_init__(self) -> None:
        self.go_on.set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name in self.failing:
                raise self.failing[name]
            return getattr(obstore, name)(*arguments, **options)

        return call

    def put(self, *arguments: Any, **options: Any) -> object:
        self.reached.set()
        self.go_on.wait()
        if "put" in self.failing:
            raise self.failing["put"]
        return obstore.put(*arguments, **options)

    def head(self, *arguments: Any) -> dict[str, Any]:
        if "head" in self.failing:
            raise self.failing["head"]
        return self._dated(obstore.head(*arguments))

    def list(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Fails when it is read, as the library's."""
        if "list" in self.failing:
            raise self.failing["list"]
        for page in obstore.list(*arguments, **options):
            yield [self._dated(one) for one in page]

    def _dated(self, found: Any) -> dict[str, Any]:
        return {**found, "last_modified": found["last_modified"] + self.ahead}

    def fail_all(self) -> None:
        away = obstore.exceptions.GenericError("Error performing GET http://k:pw@host/b in 1ms - HTTP error: gone")
        self.failing = dict.fromkeys(("put", "get", "get_range", "head", "list", "delete"), away)


class MemoryBucket(BucketBlobs):
    """A bucket in memory.

    Attributes:
        flaky: makes its calls fail.
        memory: its objects.
    """

    def __init__(self) -> None:
        self.flaky, self.memory = Flaky(), obstore.store.MemoryStore()
        super().__init__(self.memory, self.flaky, "s3://bucket/prefix", 1000)
        self._part = 1000
