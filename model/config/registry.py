"""The family of an architecture: of this tree, of an installed package, or of a file."""

import difflib
import importlib
import importlib.metadata
import runpy
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.architectures import ARCHITECTURES, Architecture
from palladio.model.config.encoders import ENCODERS
from palladio.model.config.family import Family

ENTRY_POINTS = "palladio.families"
"""Group of entry points of installed packages: each is a module with FAMILIES, or a mapping like FAMILIES."""

_IN_FILE = "::"  # between the path of a file of --family-module and an architecture; no architecture contains it

_TEXT_MODELS = {  # bases that transformers names otherwise, for the plain name is of the model that takes images
    "GPT2Model": "GPT2LMHeadModel",
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "Qwen2VLTextModel": "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLTextModel": "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLTextModel": "Qwen3VLForConditionalGeneration",
    "Qwen3_5TextModel": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeTextModel": "Qwen3_5MoeForCausalLM",
}
BASE_MODELS: Mapping[str, str] = MappingProxyType(  # the same without a head: checkpoints that are made to embed
    {name.removesuffix("ForCausalLM") + "Model": name for name in ARCHITECTURES if name.endswith("ForCausalLM")}
    | _TEXT_MODELS
    | {name: name for name in ENCODERS}
    | {f"{name.removesuffix('Model')}ForMaskedLM": name for name in ENCODERS}  # of which the head is left out
)

_ENDING = "ForSequenceClassification"
CLASSIFIERS: Mapping[str, str] = MappingProxyType(  # the same with a head that scores texts, or classifies them
    {name.removesuffix("ForCausalLM") + _ENDING: name for name in ARCHITECTURES if name.endswith("ForCausalLM")}
    | {f"Gemma3Text{_ENDING}": "Gemma3ForCausalLM", f"GPT2{_ENDING}": "GPT2LMHeadModel"}
    | {name.removesuffix("Model") + _ENDING: name for name in ENCODERS}
)
_KNOWN: Mapping[str, Architecture] = MappingProxyType({**ARCHITECTURES, **ENCODERS})


_REASONS: Mapping[str, str] = MappingProxyType(  # architectures that people ask for: why not, and what to use instead
    {
        "BaiChuanForCausalLM": "converted to Llama's format it is served as LlamaForCausalLM",
        "BaichuanForCausalLM": "Baichuan 2 normalizes its head, and 13B has ALiBi; the 7B model converted to Llama's "
        "format, head included, is served as LlamaForCausalLM",
        "ChatGLMModel": "give the -hf form of GLM-4-9B, GLM-4-0414 or a later GLM",
        "DeepseekV32ForCausalLM": "it has sparse attention; DeepSeek-V3.1 is supported",
        "InternVLChatModel": "give the form of transformers, whose names end in -HF",
        "QWenLMHeadModel": "it is Qwen 1; Qwen1.5 and later are supported",
        "NewModel": "give the form of transformers, GteModel",
    }
)


def name_of_family(architecture: str, family_module: str | None = None) -> str:
    """Return the name by which `find_family` finds the family of an architecture.

    Args:
        architecture: as config.json names it.
        family_module: a Python file with FAMILIES, whose architectures come first; None: there is none.

    Raises:
        ConfigError: the file cannot be read, or the architecture is not supported.
    """
    if family_module is not None and architecture in _families_of_file(family_module):
        return f"{family_module}{_IN_FILE}{architecture}"
    name = CLASSIFIERS.get(architecture, BASE_MODELS.get(architecture, architecture))
    if name not in _KNOWN and (not name.isidentifier() or name not in _outside()):
        raise ConfigError(_unsupported(architecture, name, family_module))
    return name


def find_family(name: str) -> Family:
    """Find a family.

    Args:
        name: a result of `name_of_family`, or an architecture of ARCHITECTURES or ENCODERS.

    Raises:
        ConfigError: there is no such family.
    """
    file, _, architecture = name.rpartition(_IN_FILE)
    if file:
        return _families_of_file(file)[architecture]
    if name not in _KNOWN:
        return _families_of_entry_point(_outside()[name_of_family(name)])[name]
    found = _KNOWN[name]
    if not found.module:  # as its first text model
        return find_family(next(iter(found.texts.values())))
    families: Mapping[str, Family] = importlib.import_module(found.module).FAMILIES
    return families[name]


def entry_points() -> Iterator[tuple[str, importlib.metadata.EntryPoint]]:
    """Yield the architectures of installed packages, each with its entry point.

    Raises:
        ConfigError: a package's families cannot be imported.
    """
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        yield from ((name, point) for name in _families_of_entry_point(point))


def _outside() -> dict[str, importlib.metadata.EntryPoint]:
    return dict(entry_points())


def _families_of_entry_point(point: importlib.metadata.EntryPoint) -> Mapping[str, Family]:
    where = f"entry point {point.name} = {point.value} of {ENTRY_POINTS}"
    try:
        found = point.load()
    except Exception as error:
        raise ConfigError(
            f"{where} cannot be imported: {type(error).__name__}: {error}. Repair or uninstall its package"
        ) from error
    return _checked(vars(found).get("FAMILIES") if isinstance(found, types.ModuleType) else found, where)


def _families_of_file(file: str) -> Mapping[str, Family]:
    where = f"--family-module {file}"
    if not Path(file).is_file():
        raise ConfigError(f"{where}: there is no such file; give a Python file with FAMILIES")
    try:
        found = runpy.run_path(file)
    except Exception as error:
        raise ConfigError(f"{where} cannot be run: {type(error).__name__}: {error}") from error
    return _checked(found.get("FAMILIES"), where)


def _checked(families: object, where: str) -> Mapping[str, Family]:
    """Return FAMILIES of a module from outside.

    Raises:
        ConfigError: it is no mapping of families.
    """
    if not isinstance(families, Mapping) or not families:
        raise ConfigError(f"{where}: FAMILIES must map architectures to families, found {shown(families)}")
    for name, family in families.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(family, Family):
            raise ConfigError(
                f"{where}: FAMILIES must have names of classes and values of Family, found {shown(name)}: "
                f"{shown(family)}"
            )
    return families


def _unsupported(architecture: str, name: str, family_module: str | None) -> str:
    """Say what to use instead, or which of the supported architectures has the nearest name."""
    stems = {_stem(each): each for each in reversed(list(_KNOWN))}
    near = stems[difflib.get_close_matches(_stem(name), stems, 1, cutoff=0.0)[0]]
    instead = f" ({_REASONS[name]})" if name in _REASONS else f"; the nearest that is: {near}"
    where = "" if family_module is None else f", and {family_module} does not have it"
    return f"architectures: {shown(architecture)} is not supported{where}{instead}; all: palladio list --architectures"


def _stem(architecture: str) -> str:
    """Return the name without what many have."""
    return architecture.partition("For")[0].removesuffix("LMHeadModel").removesuffix("Model")
