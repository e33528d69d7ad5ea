"""Weights that are read back from the devices: samples of each device's part, as they were read from the files."""

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from palladio.model.base.errors import ReadBackError
from palladio.model.base.sharding import make_mesh
from palladio.model.loading.placing import Target
from palladio.model.loading.read_back import NUM_SAMPLES, SAMPLE_SIZE, Place, ReadBack
from tests.many_devices import call_with_devices
from tests.model.driver import load
from tests.tiny_model import make_checkpoint

DAMAGED = "layers.1.mlp.down.kernel.values"


def with_changed_byte(array: jax.Array, place: Place, number: int) -> jax.Array:
    """An array of which one device's part differs by one byte, within a sample."""
    parts = []
    for shard in array.addressable_shards:
        part = np.array(shard.data)
        if shard.device.id == number:
            part[place.starts[-1]] = (part[place.starts[-1]].reshape(1).view(np.uint8) ^ 1).view(part.dtype)[0]
        parts.append(jax.device_put(part, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def load_damaged(path: Path, name: str, number: int, quantization: str | None) -> str:
    """Load over four devices, of which one gets another byte than the others; the error, "" if there is none."""
    place = Target.place

    def damaged(target: Target, slices, read_back):
        array = place(target, slices, read_back)
        if target.path != name:
            return array
        return with_changed_byte(array, Place.of(name, array.sharding.shard_shape(array.shape)), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "place", damaged)
        try:
            load(path, quantization=quantization, mesh=make_mesh(4), reads_back=True)
        except ReadBackError as error:
            return str(error)
    return ""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("read-back"), "qwen3")


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_weights_that_are_as_in_the_files_are_read_back(checkpoint, caplog, quantization):
    with caplog.at_level("INFO"):
        load(checkpoint, quantization=quantization, reads_back=True)
    assert [line for line in caplog.messages if line.startswith("Read back samples of ")]


def test_a_changed_byte_on_one_of_four_devices_is_found(checkpoint):
    assert call_with_devices(__name__, "load_damaged", checkpoint, "", 0, None) == ""
    message = call_with_devices(__name__, "load_damaged", checkpoint, DAMAGED, 2, None)
    assert f"{DAMAGED} on cpu:2 (" in message
    assert message.count(" on cpu:") == 1, "of this array, on this device alone"


def test_it_is_not_looked_for_unless_it_is_asked_for(checkpoint, monkeypatch):
    monkeypatch.setattr(ReadBack, "note", lambda *_: pytest.fail("nobody asked"))
    load(checkpoint)


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, SAMPLE_SIZE + 9), (4, 2 * SAMPLE_SIZE)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, ml_dtypes.int4], ids=str)
def test_samples_lie_within_the_part_and_are_read_from_there(shape, dtype):
    place = Place.of("a name", shape)
    assert len(place.starts) == NUM_SAMPLES
    ends = [tuple(a + n for a, n in zip(start, place.sizes, strict=True)) for start in place.starts]
    assert all(end <= size for each in ends for end, size in zip(each, shape, strict=True))
    part = np.asarray(np.random.default_rng(0).integers(-7, 7, shape)).astype(dtype)
    sharding = NamedSharding(make_mesh(1), PartitionSpec())
    array = jax.device_put(part, sharding)
    read_back = ReadBack()
    read_back.note("a name", place, {array.addressable_shards[0].device: place.take(part)})
    read_back.check({"a name": array})
    with pytest.raises(ReadBackError, match="a name"):
        read_back.check({"a name": jax.device_put((part.astype(np.float32) + 1).astype(dtype), sharding)})


def test_arrays_of_one_shape_are_looked_at_in_different_places():
    places = {Place.of(f"layers.{number}.mlp.up.values", (512, 4096)).starts for number in range(8)}
    assert len(places) == 8
