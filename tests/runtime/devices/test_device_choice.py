"""An engine without the device that was meant: what is said, and that it is one error, not jax's assertion."""

import logging
from typing import NamedTuple

import jax
import pytest

from palladio import Engine
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.devices.device_choice import choose_device, chosen_gpus, tell_fallback
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError
from tests.runtime.tiny_engine import FLAGS

JAX = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA = {**JAX, "jax-cuda13-plugin": "0.10.2"}
TPU = {**JAX, "libtpu": "0.0.42"}
GPU_HOST, TPU_HOST = {"cuda": "/dev/nvidia0"}, {"tpu": "/dev/accel0"}


@pytest.mark.parametrize(
    ("name", "signs", "packages", "says", "words"),
    [
        ("cuda", GPU_HOST, JAX, "", ["jax-cuda13-plugin or jax-cuda12-plugin is not installed", "'.[cuda13]'"]),
        ("cuda", {}, JAX, "", ["is not installed (jax 0.10.2, Python 3.11.7)", "'.[cuda12]'"]),
        ("cuda", {}, CUDA, "", ["no NVIDIA GPU was found", "--gpus all"]),
        (
            "cuda",
            GPU_HOST,
            {**CUDA, "jax-cuda13-plugin": "0.10.0"},
            "Unable to initialize backend 'cuda': Backend 'cuda' is not in the list of known backends",
            ["jax-cuda13-plugin 0.10.0 does not match jaxlib 0.10.2", "'.[cuda13]'"],
        ),
        ("cuda", GPU_HOST, CUDA, "CUDA driver version is insufficient for CUDA runtime version", ["driver is too old"]),
        ("cuda", GPU_HOST, CUDA, "FAILED_PRECONDITION: No visible GPU devices.", ["CUDA_VISIBLE_DEVICES"]),
        ("cuda", GPU_HOST, CUDA, "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device", ["CUDA_VISIBLE_DEVICES"]),
        ("cuda", GPU_HOST, CUDA, "Unable to use CUDA because of the following issues", ["unset LD_LIBRARY_PATH"]),
        ("cuda", GPU_HOST, CUDA, "INTERNAL: whatever", ["0.10.2 did not start on an NVIDIA GPU (/dev/nvidia0)"]),
        ("tpu", TPU_HOST, JAX, "Failed to open libtpu.so: libtpu.so", ["libtpu is not installed", "'.[tpu]'"]),
        (
            "tpu",
            TPU_HOST,
            TPU,
            "ABORTED: The TPU is already in use by process with pid 176028. Not attempting to load libtpu.so",
            ["process 176028 is using the TPU", "stop that process first"],
        ),
        ("tpu", TPU_HOST, TPU, "libtpu.so already in use by another process", ["another process is using the TPU"]),
        ("tpu", GPU_HOST, CUDA, "Failed to open libtpu.so", ["no TPU, but it has an NVIDIA GPU", "use --device cuda"]),
        ("cuda", TPU_HOST, TPU, "", ["no NVIDIA GPU, but it has a TPU (/dev/accel0)", "use --device tpu"]),
        ("rocm", {}, JAX, "Backend 'rocm' is not in the list", ["supported: cuda, tpu and cpu", "'rocm'"]),
    ],
)
def test_why_a_device_is_not_used(name, signs, packages, says, words):
    reason = Machine(signs, packages, "3.11.7").why_unused(name, says)
    assert [word for word in words if word not in reason] == [], reason


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


@pytest.mark.parametrize(
    ("paths", "pci", "expected"),
    [
        ([], None, {}),
        (["dev/nvidia0", "dev/nvidiactl"], None, {"cuda": "/dev/nvidia0"}),
        (["proc/driver/nvidia/gpus/0000:01:00.0/information"], None, {"cuda": "/proc/driver/nvidia/gpus/0000:01:00.0"}),
        (["dev/accel0", "dev/accel1"], None, {"tpu": "/dev/accel0"}),
        (["dev/accel/accel0"], None, {}),  # of Linux' own, such as a laptop's neural unit
        (["dev/vfio/0", "dev/vfio/vfio"], ("0x1ae0", "0x0063"), {"tpu": "/dev/vfio/0"}),
        (["dev/vfio/0", "dev/vfio/vfio"], ("0x1ae0", "0x0042"), {}),  # Google's network card
        (["dev/vfio/0", "dev/vfio/vfio"], ("0x8086", "0x0063"), {}),
    ],
)
def test_what_a_machine_shows(tmp_path, monkeypatch, paths, pci, expected):
    monkeypatch.setattr("shutil.which", lambda command: None)
    touch(tmp_path, *paths)
    if pci is not None:
        touch(tmp_path, *(f"sys/bus/pci/devices/0000:00:04.0/{name}" for name in ("vendor", "device")))
        for name, value in zip(("vendor", "device"), pci, strict=True):
            (tmp_path / "sys/bus/pci/devices/0000:00:04.0" / name).write_text(f"{value}\n")
    machine = Machine.look(tmp_path)
    assert machine.signs == expected
    assert machine.packages["jax"] == jax.__version__


def test_nvidias_command_counts_too(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/bin/{command}")
    assert Machine.look(tmp_path).signs == {"cuda": "/usr/bin/nvidia-smi"}


@pytest.fixture
def failing(monkeypatch):
    """jax, which finds no device, with the words given; platforms as it was told."""
    told = []

    def fail(error):
        def local_devices():
            told.append(jax.config.values["jax_platforms"])
            raise error

        monkeypatch.setattr(jax, "local_devices", local_devices)
        return told

    return fail


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("Unable to initialize\nbackend 'cuda': no")], ids=str)
@pytest.mark.parametrize("name", ["cuda", "gpu"])
def test_a_missing_device_is_an_error_of_the_flag(failing, name, error):
    before = jax.config.values["jax_platforms"]
    told = failing(error)
    with pytest.raises(ConfigError, match=rf"^--device {name}: .*'\.\[cuda13\]'.*; or use --device cpu") as raised:
        choose_device(name, machine=Machine(GPU_HOST, JAX))
    assert told == ["cuda"]
    assert jax.config.values["jax_platforms"] == before  # the next engine of this process has another choice
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("signs", "packages", "shown"), [({}, JAX, 0), (GPU_HOST, JAX, 0), ({"tpu": "/dev/accel0"}, JAX, 1), ({}, TPU, 1)]
)
def test_jax_says_that_it_cannot_use_a_tpu_where_one_is_expected(monkeypatch, caplog, signs, packages, shown):
    found = jax.local_devices()

    def local_devices():
        logging.getLogger("jax._src.xla_bridge").info("Unable to initialize backend 'tpu': no libtpu.so")
        return found

    monkeypatch.setattr(jax, "local_devices", local_devices)
    with caplog.at_level("INFO"):
        assert choose_device("auto", machine=Machine(signs, packages)) == found[0]
        assert len(caplog.messages) == shown
        logging.getLogger("jax._src.xla_bridge").info("Unable to initialize backend 'tpu': later")
    assert caplog.messages[-1].endswith("later")


class Gpu(NamedTuple):
    """What jax says of one."""

    local_hardware_id: int
    platform: str = "gpu"


@pytest.fixture
def gpus(monkeypatch):
    """A host with four GPUs; of jax, which looks for them once, only those that it was told to use: its list."""
    asked = []

    def local_devices():
        told = jax.config.values["jax_cuda_visible_devices"]
        asked.append(told)
        found = [Gpu(number) for number in range(4) if told == "all" or str(number) in told.split(",")]
        if not found:
            raise RuntimeError("Unable to initialize backend 'cuda': no supported devices found for platform CUDA")
        return found

    monkeypatch.setattr(jax, "local_devices", local_devices)
    return asked


@pytest.mark.parametrize(
    ("tp_size", "dp_size", "nnodes", "told"), [(1, 1, None, "2"), (2, 1, None, "2,3"), (2, 2, 2, "2,3")]
)
def test_the_first_gpu_is_chosen_by_number(gpus, tp_size, dp_size, nnodes, told):
    parallel = ParallelConfig(base_gpu_id=2, tp_size=tp_size, dp_size=dp_size, nnodes=nnodes)
    assert choose_device("auto", chosen_gpus(parallel), Machine({}, JAX)) == Gpu(2)
    assert gpus == [told]


def test_an_engine_leaves_its_choice_to_itself(gpus, monkeypatch):
    """A second one of the process asks for what its own flags say, and hears what it does not get."""
    before = jax.config.values["jax_platforms"], jax.config.values["jax_cuda_visible_devices"]
    assert choose_device("cuda", range(2, 3), Machine({}, JAX)) == Gpu(2)
    assert (jax.config.values["jax_platforms"], jax.config.values["jax_cuda_visible_devices"]) == before
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(2)])
    with pytest.raises(ConfigError, match=r"^--base-gpu-id 0 has no effect: jax already uses GPU 2 in this process"):
        choose_device("auto", machine=Machine({}, JAX))


def test_gpus_that_are_not_there_or_taken_are_errors_of_the_flag(gpus, monkeypatch):
    before = jax.config.values["jax_cuda_visible_devices"]
    assert chosen_gpus(ParallelConfig(tp_size=2)) is None
    with pytest.raises(ConfigError, match=r"^--base-gpu-id 4: --device cuda: .* no supported devices found"):
        choose_device("cuda", chosen_gpus(ParallelConfig(base_gpu_id=4)), Machine(GPU_HOST, CUDA))
    assert jax.config.values["jax_cuda_visible_devices"] == before
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(0)])
    with pytest.raises(ConfigError, match=r"^--base-gpu-id 1 has no effect: jax already uses GPU 0 in this process"):
        choose_device("auto", chosen_gpus(ParallelConfig(base_gpu_id=1)))
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(0, "tpu")])
    with pytest.raises(ConfigError, match=r"^--base-gpu-id 1 is for GPUs, and this engine runs on tpu"):
        choose_device("auto", chosen_gpus(ParallelConfig(base_gpu_id=1)))
    assert jax.config.values["jax_cuda_visible_devices"] == before


def test_an_engine_on_a_cpu_has_no_gpu_to_choose(tiny_dir):
    with pytest.raises(ConfigError, match=r"^--base-gpu-id 1 is for GPUs, and this engine runs on cpu: there is no"):
        Engine(model_path=str(tiny_dir), base_gpu_id=1, **FLAGS)
    with pytest.raises(ConfigError, match="--base-gpu-id must be"):
        EngineConfig.from_flags({"model_path": "m", "base_gpu_id": -1})


def test_variables_of_jax_and_plugins_that_fail_by_themselves_are_named(failing):
    platforms = jax.config.values["jax_platforms"]  # JAX_PLATFORMS may be set where the tests run
    try:
        jax.config.update("jax_platforms", None)
        failing(RuntimeError("Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices."))
        with pytest.raises(
            ConfigError, match=r"^--device auto: .*CUDA_VISIBLE_DEVICES.*; or use --device cpu\. jax error: "
        ):
            choose_device("auto", machine=Machine(GPU_HOST, CUDA))
        failing(AssertionError())
        jax.config.update("jax_platforms", "cuda")
        with pytest.raises(
            ConfigError, match=r"^JAX_PLATFORMS=cuda: jax-cuda13-plugin or jax-cuda12-plugin is not inst"
        ):
            choose_device("auto", machine=Machine({}, JAX))
    finally:
        jax.config.update("jax_platforms", platforms)


@pytest.mark.parametrize(
    ("name", "platforms", "signs", "packages", "words"),
    [
        ("auto", None, GPU_HOST, JAX, "which is slow: jax-cuda13-plugin or jax-cuda12-plugin is not installed"),
        ("auto", None, TPU_HOST, JAX, "which is slow: libtpu is not installed"),
        ("auto", None, {}, CUDA, "jax-cuda13-plugin is installed, but no NVIDIA GPU was found"),
        ("auto", "cuda,cpu", {}, JAX, "although JAX_PLATFORMS=cuda,cpu is set"),
        ("auto", None, {}, JAX, ""),
        ("auto", "cpu", GPU_HOST, JAX, ""),
        ("cpu", None, GPU_HOST, JAX, ""),
        ("cpu", "cpu", GPU_HOST, CUDA, ""),
    ],
)
def test_falling_back_to_the_cpu_is_told_loudly(caplog, name, platforms, signs, packages, words):
    before = jax.config.values["jax_platforms"]
    try:
        jax.config.update("jax_platforms", platforms)
        with caplog.at_level(logging.INFO):
            tell_fallback(jax.local_devices()[0], name, Machine(signs, packages))
    finally:
        jax.config.update("jax_platforms", before)
    told = [record for record in caplog.records if record.name == "palladio.engine"]
    assert [record.levelname for record in told] == (["WARNING"] if words else [])
    assert words in caplog.text


def test_an_engine_that_chose_the_cpu_silences_no_warning_of_the_next_one(caplog):
    before = jax.config.values["jax_platforms"]
    try:
        jax.config.update("jax_platforms", None)
        assert choose_device("cpu").platform == "cpu"
        tell_fallback(choose_device("auto"), "auto", Machine(GPU_HOST, CUDA))
    finally:
        jax.config.update("jax_platforms", before)
    assert "Running on CPU, which is slow" in caplog.text


def test_the_offline_engine_says_the_same(tiny_dir, failing, monkeypatch):
    failing(AssertionError())
    monkeypatch.setattr(Machine, "look", lambda: Machine({}, JAX, "3.11.7"))
    with pytest.raises(ConfigError, match=r"^--device cuda: jax-cuda13-plugin or jax-cuda12-plugin is not installed"):
        Engine(model_path=str(tiny_dir), device="cuda", **FLAGS)
    with pytest.raises(ConfigError, match="--device must be one of auto, tpu, gpu, cuda, cpu, got 'rocm'"):
        EngineConfig.from_flags({"model_path": "m", "device": "rocm"})
