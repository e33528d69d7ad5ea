"""--reasoning-parser auto: which family a model is of, by its type and by what its chat template writes."""

import dataclasses
import logging
import re

from palladio.http.prompts.template_format import TemplateFacts
from palladio.http.reasoning.family import ReasoningFamily, TagFamily
from palladio.http.reasoning.registry import AUTO, OFF, find_family

logger = logging.getLogger(__name__)

_find_suffix = re.compile(r"<think(:[^>\s]+)>").search

# Tags that only one family has.
_OWN_TAGS = (
    ("◁think▷", "kimi"),
    ("[THINK]", "mistral"),
    ("<seed:think>", "seed_oss"),
    ("<|START_THINKING|>", "cohere_command4"),
    ("<|channel>thought", "gemma4"),
    ("<mm:think>", "minimax-m3"),
    ("<|inner_prefix|>", "apertus2509"),
    ("<ifm|think", "k2_horizon"),
    ("plamo:begin_think", "plamo3"),
    ("<|content_thinking|>", "inkling"),
    ("<atem:", "muse"),
    ("<|open|>", "kimi_k3"),
    ("｜GCML｜", "gigachat35"),
    ("<think:", "hunyuan"),
    ("Here is my thought process:", "granite"),
)
# Beginnings of the types of models that write <think>.
_TYPES = (
    ("qwen3", "qwen3"),
    ("glm", "glm45"),
    ("kimi", "kimi_k2"),
    ("minimax", "minimax"),
    ("step3", "step3"),
    ("mimo", "mimo"),
    ("intern", "interns1"),
    ("nemotron", "nemotron_3"),
    ("granite", "granite_thinking_parser"),
    ("deepseek_v4", "deepseek-v4"),
    ("hunyuan", "hunyuan"),
    ("hy_v", "hunyuan"),
    ("ernie", "ernie45"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelTraits:
    """What is known of the model.

    Attributes:
        name: its path.
        model_type: of its config.json.
        template: its chat template; None: it has none.
    """

    name: str
    model_type: str
    template: str | None


def choose_family(flag: str, model: ModelTraits) -> ReasoningFamily | None:
    """The family that --reasoning-parser means for this model; None: nothing is separated. Logs what it chose."""
    if flag == OFF:
        return None
    if flag != AUTO:
        return _as_written(find_family(flag), model)
    name = _recognize(model)
    family = None if name is None else _as_written(find_family(name), model)
    if family is None:
        logger.info("Reasoning parser: none; the chat template shows no sign of reasoning")
    else:
        logger.info("Reasoning parser: %s, by the model's type and chat template", family.name)
    return family


def _as_written(family: ReasoningFamily | None, model: ModelTraits) -> ReasoningFamily | None:
    """Hunyuan's tags end with a word that each checkpoint chooses: as the template has it."""
    found = _find_suffix(model.template or "")
    if found is None or not isinstance(family, TagFamily) or family.name != "hunyuan":
        return family
    return dataclasses.replace(family, start=f"<think{found[1]}>", end=f"</think{found[1]}>")


def _recognize(model: ModelTraits) -> str | None:
    template = model.template or ""
    if model.model_type.startswith("gpt_oss") or ("<|channel|>" in template and "analysis" in template):
        return "gpt-oss"
    if model.model_type == "kimi_vl" and "thinking" in model.name.lower():  # its template does not show it
        return "kimi"
    for tag, name in _OWN_TAGS:
        if tag in template:
            return name
    if "<think>" not in template and "</think>" not in template:
        return None
    for beginning, name in _TYPES:
        if model.model_type.startswith(beginning):
            return name
    variables = TemplateFacts.of(template).variables
    if "enable_thinking" in variables:
        return "qwen3"
    if "thinking" in variables:
        return "deepseek-v3"
    is_r1 = model.model_type.startswith("deepseek") or re.search(r"\br1\b", model.name.lower())
    # What begins inside though its prompt does not say so would take a whole answer for reasoning: only where known.
    return "deepseek-r1" if is_r1 else "qwen3"
