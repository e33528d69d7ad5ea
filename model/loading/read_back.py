"""What devices hold of the weights, compared in part with what was read from the files."""

import collections
import dataclasses
import functools
import logging
import time
import zlib
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from palladio.model.base.errors import ReadBackError
from palladio.model.loading.readers.safetensors_file import Array

NUM_SAMPLES = 2  # of each device's part of an array
SAMPLE_SIZE = 1024  # numbers at most, in the last dimension
_MAX_SHOWN = 3  # differences in a message

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Attributes:
    starts: of samples in each device's part of an array, i32[NUM_SAMPLES, dimensions]. sizes: of each sample.
    """

    starts: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, path: str, shape: tuple[int, ...]) -> "Place":
        """Choose places by the array's name, so that arrays of one shape are looked at in different ones.

        Args:
            shape: of one device's part.
        """
        sizes = (*(1 for _ in shape[:-1]), min(shape[-1], SAMPLE_SIZE)) if shape else ()
        room = [size - own for size, own in zip(shape, sizes, strict=True)]
        seeds = [zlib.crc32(f"{path} {number}".encode()) for number in range(NUM_SAMPLES)]
        generators = [np.random.default_rng(seed) for seed in seeds]
        return cls(tuple(tuple(int(generator.integers(most + 1)) for most in room) for generator in generators), sizes)

    def take(self, part: Array) -> Array:
        """Copy the samples from a part in host memory: [NUM_SAMPLES, *sizes]."""
        cuts = (tuple(slice(a, a + n) for a, n in zip(start, self.sizes, strict=True)) for start in self.starts)
        return np.stack([part[cut] for cut in cuts])


class ReadBack:
    """Keeps samples of what is placed on devices, and looks for them there when all of it is loaded."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[Place, Mapping[jax.Device, Array]]] = {}

    def note(self, path: str, place: Place, samples: Mapping[jax.Device, Array]) -> None:
        """Keep the samples of an array.

        Args:
            samples: device → what `place` takes of its part.
        """
        self._expected[path] = place, samples

    def check(self, arrays: Mapping[str, jax.Array]) -> None:
        """Compare the samples with what each device of this host holds.

        Args:
            arrays: path → array; those that nothing is known of are left out.

        Raises:
            ReadBackError: a device holds something else; the message names the arrays and the devices.
        """
        begun = time.perf_counter()
        known = [(path, *self._expected[path]) for path in arrays if path in self._expected]
        read = [_read(arrays[path], place) for path, place, _ in known]  # all are under way before the first is awaited
        wrong: list[str] = []
        seen: collections.Counter[jax.Device] = collections.Counter()
        for (path, _, samples), found in zip(known, read, strict=True):
            for shard in found.addressable_shards:
                seen[shard.device] += 1
                expected, held = samples[shard.device], np.asarray(shard.data)[0]
                if _checksum(held) != _checksum(expected):
                    differing = int((_bytes(held) != _bytes(expected)).any(-1).sum())
                    wrong.append(f"{path} on {shard.device} ({differing} of {expected.size} numbers differ)")
        if wrong:
            more = f" and {len(wrong) - _MAX_SHOWN} more" if len(wrong) > _MAX_SHOWN else ""
            shown = "; ".join(wrong[:_MAX_SHOWN])
            raise ReadBackError(
                f"weights on a device differ from what was read from the files: {shown}{more}. The device, its driver "
                "or this host's memory is at fault: restart, and replace the machine if it happens again (to start "
                "without this check: --start-check never)"
            )
        logger.info(
            "Read back samples of %d arrays from %d devices in %.1f s: as in the files",
            *(len(known), len(seen), time.perf_counter() - begun),
        )


def _read(array: jax.Array, place: Place) -> jax.Array:
    """Dispatch the reading of the samples of each device's part: [devices, NUM_SAMPLES, *sizes]."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding), "as all parameters have"
    return _reader(sharding, place.sizes)(array, np.array(place.starts, np.int32))


@functools.lru_cache(maxsize=256)
def _reader(sharding: NamedSharding, sizes: tuple[int, ...]) -> Callable[[jax.Array, Array], jax.Array]:
    """Return a function that takes samples on every device, compiled once for all arrays of a shape."""

    def take(own: jax.Array, starts: jax.Array) -> jax.Array:
        samples = [jax.lax.dynamic_slice(own, list(starts[number]), sizes) for number in range(NUM_SAMPLES)]
        return jax.numpy.stack(samples)[None]

    on_all = PartitionSpec(sharding.mesh.axis_names)
    specs = (sharding.spec, PartitionSpec())
    return jax.jit(jax.shard_map(take, mesh=sharding.mesh, in_specs=specs, out_specs=on_all, check_vma=False))


def _bytes(array: Array) -> Array:
    """The bytes of each number: u8[numbers, bytes]."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, -1)


def _checksum(array: Array) -> int:
    return zlib.crc32(_bytes(array).tobytes())
