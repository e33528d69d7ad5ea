"""WeightLoader: the weights of an engine that runs, read again, or those of another checkpoint of the same model."""

import dataclasses
from pathlib import Path

import jax

from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.config.quantization_config import QUANT_FILES
from palladio.model.files.folder_files import check_is_whole
from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import load_model
from palladio.model.loading.readers.checkpoint import INDEX_NAME, weight_files
from palladio.model.loading.stored_config import LoadFormat, agree_with_weights
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory import DeviceMemory
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory
from palladio.runtime.execution.state.device_state import Weights
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError, MissingKeysError, ReadBackError
from palladio.runtime.multihost.config_digest import model_hash

# What another checkpoint of the same model may say otherwise: how it is stored, and what the front has read already.
_FREE = ("quantization", "weight_kinds", "converted_dtype", "stored_dtype", "dtype", "eos_token_ids", "bos_token_id")

_SETTINGS = ("config.json", "generation_config.json", *QUANT_FILES, INDEX_NAME)  # files, of which most are never there


class WeightLoader:
    """
    Args:
        design: of the engine.
    """

    def __init__(self, design: EnginePlan) -> None:
        self._design = design

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights on one device."""
        return self._design.plan.report.weights

    def fingerprint(self, path: Path) -> int:
        """Hash the files in a directory; the result is > 1.

        Raises:
            InvalidRequestError: they cannot be read.
        """
        source = dataclasses.replace(self._design.config.source, model_path=str(path), load_format="safetensors")
        try:
            return 2 + int(model_hash(source), 16)
        except (ConfigError, OSError) as error:  # they were there a moment ago
            raise InvalidRequestError(f"cannot read the weights in {path}: {error}") from error

    def load_first(self) -> Weights:
        """Load the weights that the engine started with.

        Raises:
            InvalidRequestError: their files are gone or have changed, or do not fit.
        """
        design = self._design
        return self._load(design.path, design.model, design.config.source.load_format)

    def load(self, path: Path) -> Weights:
        """Load the weights of another checkpoint, of the same shapes. Reads safetensors alone.

        Raises:
            InvalidRequestError: they are not of this model, or cannot be read, or do not fit.
        """
        try:
            if path.is_dir():  # not a GGUF file
                weights = [str(file.relative_to(path)) for file in weight_files(path)]
                check_is_whole(path, [*_SETTINGS, *weights])
            model = self._model_at(path)
        except MissingKeysError as error:
            raise _partial(path, error) from error
        except ConfigError as error:
            raise InvalidRequestError(str(error)) from error
        return self._load(path, model, "safetensors")

    def check_room(self) -> None:
        """
        Raises:
            InvalidRequestError: a device has no room for a second copy of the weights.
        """
        devices = list(self._design.shape.mesh.local_devices)
        num_copies = len(devices) if self._design.device.platform == "cpu" else 1  # there they share the host's memory
        free = min(DeviceMemory.of(device).available for device in devices)
        missing = num_copies * self.num_bytes - free
        if missing > 0:
            raise InvalidRequestError(
                f"the new weights need {num_copies * self.num_bytes:,} bytes in addition to the old ones, and {free:,} "
                f"are free: {missing:,} bytes are missing. First free the KV cache or the old weights "
                '(/release_memory_occupation with tags ["kv_cache"] or ["weights"]), or restart with a lower '
                "--mem-fraction-static"
            )

    def _model_at(self, path: Path) -> ModelConfig:
        """
        Raises:
            ConfigError: config.json or the tensors are of another model.
        """
        served = self._design.model
        found = served
        if (path / "config.json").is_file():
            source = self._design.config.source
            read = read_model_dir(path, overrides_of(source.json_model_override_args))
            found = ModelConfig.from_hf(*read, source.family_module)
            found = dataclasses.replace(found, has_head=served.has_head, classifier=served.classifier)
        # As it is served: a short context has no use for a long window, or for one of two rotations.
        found = agree_with_weights(path, found, "safetensors").for_context(self._design.limits.context_length)
        names = [field.name for field in dataclasses.fields(ModelConfig) if field.name not in _FREE]
        values = [(name, vars(found)[name], vars(served)[name]) for name in names]
        differing = [f"{name} is {new!r}, here {old!r}" for name, new, old in values if new != old]
        if differing:
            raise ConfigError(f"{path} contains another model than the one that is served: {'; '.join(differing)}")
        return dataclasses.replace(served, quantization=found.quantization)

    def _load(self, path: Path, model: ModelConfig, load_format: LoadFormat) -> Weights:
        design = self._design
        try:
            loaded = load_model(
                path,
                model,
                dtype=design.dtypes.activations,
                weights_dtype=design.dtypes.weights,
                mesh=design.shape.mesh,
                load_format=load_format,
                kernels=design.kernels,
                seed=design.seed,
                reads_back=design.config.execution.checks_start(design.device.platform),
            )
            _, weights = flatten_model(loaded)
            jax.block_until_ready(weights)
        except MissingKeysError as error:
            raise _partial(path, error) from error
        except (ConfigError, ReadBackError) as error:
            raise InvalidRequestError(str(error)) from error
        except OSError as error:
            raise InvalidRequestError(f"cannot read the weights in {path}: {error}") from error
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InvalidRequestError(
                f"out of memory while loading the weights in {path}, which take {self.num_bytes:,} bytes on each "
                f"device. XLA error: {error}"
            ) from error
        return weights


def _partial(path: Path, error: MissingKeysError) -> InvalidRequestError:
    return InvalidRequestError(
        f"the weights in {path} are only a part of the model's: there is no {error.shown}. An update exchanges all "
        "weights at once: give all tensors of the model"
    )
