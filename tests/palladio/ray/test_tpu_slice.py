"""Bundles that reserve TPU slices, as Ray counts hosts and chips."""

import pytest

from palladio.ray.arguments import ServeArguments
from palladio.ray.settings import deployment_settings
from palladio.ray.tpu_slice import TpuSlice
from palladio.runtime.interface.errors import ConfigError

# generation and topology → hosts, chips a host, Ray's name of the slice's type
SLICES = {
    ("v6e", "1x1"): (1, 1, "v6e-1"),
    ("v6e", "2x4"): (1, 8, "v6e-8"),
    ("v6e", "4x4"): (4, 4, "v6e-16"),
    ("v5e", "2x2"): (1, 4, "v5litepod-4"),
    ("v5litepod", "8x8"): (16, 4, "v5litepod-64"),
    ("v4", "2x2x1"): (1, 4, "v4-8"),
    ("TPU-V5P", "2x2x2"): (2, 4, "v5p-16"),
    ("v5p", "4x4x4"): (16, 4, "v5p-128"),
    ("tpu7x", "2x2x4"): (4, 4, "v7x-32"),
}


@pytest.mark.parametrize(("generation", "topology"), SLICES)
def test_hosts_and_chips(generation: str, topology: str) -> None:
    found = TpuSlice.of(generation, topology)
    assert (found.num_hosts, found.chips_per_host, found.pod_type) == SLICES[generation, topology]
    first, others = found.first_bundle(2.0), found.other_bundles()
    assert len(others) == found.num_hosts - 1
    assert first["TPU"] + sum(bundle["TPU"] for bundle in others) == found.num_chips
    heads = {name: amount for name, amount in first.items() if name.endswith("-head")}
    assert heads == ({f"TPU-{found.pod_type}-head": 1.0} if others else {})
    assert not any(name.endswith("-head") for bundle in others for name in bundle)


def test_a_replica_reserves_the_head_of_a_slice_of_several_hosts() -> None:
    arguments = ServeArguments.of({"model_path": "default", "tpu": "v6e", "tpu_topology": "4x4", "num_cpus": 8})
    settings = deployment_settings(arguments)
    bundle = {"CPU": 8.0, "TPU": 4.0, "TPU-v6e-16-head": 1.0}
    assert settings["placement_group_bundles"] == [bundle]
    assert settings["ray_actor_options"] == {"num_cpus": 8.0, "resources": {"TPU": 4.0, "TPU-v6e-16-head": 1.0}}


@pytest.mark.parametrize(
    ("generation", "topology", "word"),
    [
        ("v9", "2x2", "tpu must be one of"),
        ("v6e", "4", "tpu_topology must be chips along each axis"),
        ("v6e", "4xx4", "tpu_topology must be"),
        ("v6e", "0x4", "tpu_topology must be"),
        ("v5p", "1x3x3", "no whole number of hosts of 4 chips"),
    ],
)
def test_what_is_no_slice_is_an_error(generation: str, topology: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        TpuSlice.of(generation, topology)
