"""What sentence-transformers' files say of pooling: modules.json, and the config.json of each module."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.files.small_files import read_json, read_object
from palladio.model.pooling.pooling_spec import (
    Activation,
    Dense,
    Normalize,
    PoolingMethod,
    PoolingSpec,
    VectorNorm,
    VectorStep,
)

MODULES_FILE = "modules.json"
MAX_MODULES = 32  # published models have up to 6
MAX_SIZE = 1 << 20  # numbers of a vector

_METHODS: Mapping[str, PoolingMethod] = MappingProxyType(
    {
        "cls": "cls",
        "max": "max",
        "mean": "mean",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean": "weighted_mean",
        "lasttoken": "last",
    }
)
_FLAGS: Mapping[str, PoolingMethod] = MappingProxyType(  # in the order of the vectors
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weighted_mean",
        "pooling_mode_lasttoken": "last",
    }
)
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "Identity": "identity",
        "Tanh": "tanh",
        "ReLU": "relu",
        "GELU": "gelu",
        "SiLU": "silu",
        "Sigmoid": "sigmoid",
    }
)
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_MODULES = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """An entry of modules.json.

    Attributes:
        kind: its class, without the names of packages.
        folder: of its files, below the model's folder; "": that itself.
        package: the outermost package of its class.
    """

    kind: str
    folder: str
    package: str

    def file(self, name: str) -> str:
        """Return the path of one of its files, below the model's folder."""
        return f"{self.folder}/{name}" if self.folder else name


def read_modules(folder: Path) -> tuple[Module, ...] | None:
    """Read modules.json; None: there is no such file.

    Raises:
        ConfigError: it is no list of modules, or has one that is not supported.
    """
    content = read_json(folder, MODULES_FILE)
    if content is None:
        return None
    file = folder / MODULES_FILE
    entries = content if isinstance(content, list) else [content]
    if len(entries) > MAX_MODULES:
        raise ConfigError(f"{file} has {len(entries)} modules, over the limit of {MAX_MODULES}")
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise ConfigError(f"{file} must be a list of objects with `type` and `path`")
        package, _, kind = entry["type"].rpartition(".")
        kind = "Transformer" if kind in _TRANSFORMERS else kind
        if kind not in _MODULES:
            raise ConfigError(f"{file}: type {shown(entry['type'])} is not supported; only {', '.join(_MODULES)} are")
        found.append(Module(kind, entry["path"].strip("/"), package.partition(".")[0]))
    kinds = [module.kind for module in found]
    for kind in ("Transformer", "Pooling"):
        if kinds.count(kind) > 1:
            raise ConfigError(f"{file} has {kinds.count(kind)} modules of type {kind}; one is supported")
    if "Transformer" in kinds[1:]:
        raise ConfigError(f"{file}: the Transformer must be the first module")
    return tuple(found)


def read_pooling(folder: Path, hidden_size: int | None = None, default: PoolingSpec = PoolingSpec()) -> PoolingSpec:
    """Read how a model's folder asks for vectors to be made.

    Args:
        hidden_size: numbers of a hidden state of the model; None: not known, and not compared.
        default: what holds without these files; of its methods, also where modules.json has no Pooling. A decoder
            takes the last token, as SGLang does.

    Raises:
        ConfigError: a file cannot be read, asks for what is not supported, or does not agree with the model.
    """
    modules = read_modules(folder)
    if modules is None:
        return _of_one_file(folder, hidden_size, default)
    return _Reading(folder, hidden_size, default).read(modules)


def _of_one_file(folder: Path, hidden_size: int | None, default: PoolingSpec) -> PoolingSpec:
    """Read 1_Pooling/config.json, of a folder without modules.json."""
    module = Module("Pooling", "1_Pooling", "")
    content = read_json(folder, module.file("config.json"))
    if content is None:
        return default
    methods, includes_prompt = _pooling(folder / module.file("config.json"), content, hidden_size)
    return dataclasses.replace(default, methods=methods, includes_prompt=includes_prompt)


@dataclasses.dataclass(slots=True)
class _Reading:
    """The modules of a folder, read one after the other.

    Attributes:
        size: numbers of a vector after the modules so far; None: not known.
    """

    folder: Path
    size: int | None
    default: PoolingSpec

    def read(self, modules: tuple[Module, ...]) -> PoolingSpec:
        kinds = [module.kind for module in modules]
        if "Pooling" in kinds:
            place = kinds.index("Pooling")
            token_steps = tuple(self._steps(modules[:place]))
            methods, includes_prompt = self._pooling(modules[place])
            return PoolingSpec(methods, tuple(self._steps(modules[place + 1 :])), token_steps, includes_prompt)
        is_of_tokens = any(module.kind == "Dense" and self._is_of_tokens(module) for module in modules)
        steps = tuple(self._steps(modules))
        if not is_of_tokens:
            return PoolingSpec(self.default.methods, steps)
        if modules[-1].package == "pylate":  # normalizes what its models make
            steps = (*steps, Normalize())
        return PoolingSpec((), (), steps)

    def _steps(self, modules: tuple[Module, ...]) -> Iterator[VectorStep]:
        for module in modules:
            if module.kind == "Dense":
                yield self._dense(module)
            elif module.kind == "LayerNorm":
                yield self._norm(module)
            elif module.kind == "Normalize":
                yield Normalize()

    def _config(self, module: Module) -> tuple[Path, dict[str, Any]]:
        name = module.file("config.json")
        content = read_object(self.folder, name)
        if content is None:
            raise ConfigError(
                f"{self.folder / name} is missing; {MODULES_FILE} names its folder. Download the model again"
            )
        return self.folder / name, content

    def _pooling(self, module: Module) -> tuple[tuple[PoolingMethod, ...], bool]:
        name = module.file("config.json")
        content = read_json(self.folder, name)
        if content is None:
            return self.default.methods, True
        methods, includes_prompt = _pooling(self.folder / name, content, self.size)
        self.size = None if self.size is None else self.size * len(methods)
        return methods, includes_prompt

    def _is_of_tokens(self, module: Module) -> bool:
        """Whether a Dense takes each token's vector: PyLate's do, where sentence-transformers' say so."""
        _, content = self._config(module)
        return content.get("module_input_name") == "token_embeddings" or module.package == "pylate"

    def _dense(self, module: Module) -> Dense:
        file, content = self._config(module)
        num_inputs, num_outputs = (_count(file, content, key) for key in ("in_features", "out_features"))
        self._agree(file, "in_features", num_inputs)
        name = content.get("activation_function")
        kind = "Tanh" if name is None else str(name).rpartition(".")[2]
        if kind not in _ACTIVATIONS:
            raise ConfigError(
                f"{file}: activation_function {shown(name)} is not supported; only {', '.join(_ACTIVATIONS)} are"
            )
        self.size = num_outputs
        has_bias, adds_input = _flag(file, content, "bias", True), _flag(file, content, "use_residual", False)
        return Dense(module.folder, num_inputs, num_outputs, has_bias, _ACTIVATIONS[kind], adds_input)

    def _norm(self, module: Module) -> VectorNorm:
        file, content = self._config(module)
        size = _count(file, content, "dimension")
        self._agree(file, "dimension", size)
        self.size = size
        return VectorNorm(module.folder, size)

    def _agree(self, file: Path, key: str, found: int) -> None:
        if self.size is not None and found != self.size:
            raise ConfigError(f"{file}: {key} is {found}, but the module before it gives {self.size} numbers")


def _pooling(file: Path, content: Any, hidden_size: int | None) -> tuple[tuple[PoolingMethod, ...], bool]:
    """Read a Pooling's config.json: its methods, and whether a prompt's tokens count."""
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must be a JSON object")
    for key in ("word_embedding_dimension", "embedding_dimension"):
        if hidden_size is not None and content.get(key) is not None and _count(file, content, key) != hidden_size:
            raise ConfigError(
                f"{file}: {key} is {content[key]}, but the model's hidden states have {hidden_size} numbers: the file "
                "belongs to another model"
            )
    includes_prompt = _flag(file, content, "include_prompt", True)
    named = content.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{file}: pooling_mode must be a text or a list of texts, found {shown(named)}")
        for name in names:
            if name not in _METHODS:
                message = f"{file}: pooling_mode {shown(name)} is not supported; only {', '.join(_METHODS)} are"
                raise ConfigError(message)
        return tuple(_METHODS[name] for name in names), includes_prompt
    wanted = [key for key in content if key.startswith("pooling_mode_") and _flag(file, content, key, False)]
    unknown = [key for key in wanted if key not in _FLAGS]
    if unknown:
        raise ConfigError(f"{file}: {unknown[0][:100]} is not supported; only {', '.join(_FLAGS)} are")
    return tuple(method for key, method in _FLAGS.items() if key in wanted) or ("mean",), includes_prompt


def _count(file: Path, content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"{file}: {key} must be a whole number in 1 … {MAX_SIZE}, found {shown(value)}")
    return value


def _flag(file: Path, content: Mapping[str, Any], key: str, default: bool) -> bool:
    value = content.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"{file}: {key} must be true or false, found {shown(value)}")
    return value
