"""Faults of a family's parts other than its weights (tokenizers, templates, parsers), and of their decode steps."""

from tests.faults.fault import Fault

_STORED = ("tests/runtime/text/tokenizers/test_stored_tokenizers.py",)

_TEMPLATES = ("tests/http/chat/test_family_templates.py",)
_MISTRAL = ("tests/http/prompts/test_mistral_prompts.py",)

FAMILY_FAULTS: tuple[Fault, ...] = (
    Fault(
        "Chinese is cut as other letters are",
        "runtime/text/tokenizers/stored_tokenizers.py",
        'r"[\\p{Han}]+",',
        'r"[\\p{Han}]{1}",',
        _STORED,
    ),
    Fault(
        "a piece that is a token is merged together all the same",
        "runtime/text/tokenizers/stored_tokenizers.py",
        "Split(pattern, whole_first=True)",
        "Split(pattern)",
        _STORED,
    ),
    Fault(
        "only one way to put a token together is known",
        "runtime/text/tokenizers/bpe_tokenizers.py",
        "            if left is not None and right is not None:",
        "            if left is not None and right is not None and place == len(token) - 1:",
        _STORED,
    ),
    Fault(
        "a piece keeps its name where the configuration has another",
        "runtime/text/tokenizers/sentencepiece_model.py",
        "[names.get(number, piece) for",
        "[piece for",
        _STORED,
    ),
    Fault(
        "InternLM's calls are not recognized",
        "http/tool_calls/detection.py",
        '(("<|action_start|>",), "internlm"),',
        '(("<|action_begin|>",), "internlm"),',
        ("tests/http/tool_calls/test_tool_calls.py", *_TEMPLATES),
    ),
    Fault(
        "GLM 4.7 is taken for GLM 4.5",
        "http/tool_calls/detection.py",
        '(("</arg_key><arg_value>",), "glm47"),',
        '(("</arg_key><arg_values>",), "glm47"),',
        _TEMPLATES,
    ),
    Fault(
        "tools stand before Mistral's last question in every version",
        "http/prompts/templates/mistral-tekken.jinja",
        "version < 13 or place.tools < 0",
        "version",
        _MISTRAL,
    ),
    Fault(
        "the version of a tekken.json is not told",
        "runtime/text/tokenizers/stored_tokenizers.py",
        "int(version) if version.isdigit() else None",
        "None",
        _MISTRAL,
    ),
    Fault(
        "the tag that the prompt opened is missing from appended reasoning",
        "http/reasoning/appended.py",
        "first=self.start if is_open and not keep_tags else",
        "first=self.start if is_open and keep_tags else",
        ("tests/http/reasoning/test_reasoning.py",),
    ),
    Fault(
        "a model quantized by MLX is taken for one that is not quantized",
        "runtime/text/hub/foreign_models.py",
        'or "group_size" not in quantization:',
        'or "group_size" in quantization:',
        ("tests/runtime/text/hub/test_hub.py",),
    ),
    Fault(
        "the smallest decode step of an accelerator has one row",
        "runtime/core/plan/platform_defaults.py",
        "min_decode=2,",
        "min_decode=1,",
        ("tests/runtime/core/plan/test_sizing.py",),
    ),
)
