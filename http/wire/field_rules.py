"""The verdict on every request field that is not implemented: "no silent parameters" as tables.

A field of a request is one of four things:
- implemented: it is a field of the wire model, and takes effect;
- METADATA: accepted, and harmless to ignore for the reason given here;
- NOT_YET: refused with a 400 that names it, unless its value asks for nothing (an empty list, the default …);
- unknown: refused with a 400 that names the closest known field.
An explicit null always means "not given".
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError

METADATA: Mapping[str, str] = {
    "user": "names the client's end user; nothing here depends on it",
    "safety_identifier": "OpenAI's newer name for user",
    "metadata": "labels for OpenAI's dashboard",
    "client_metadata": "names the client's installation and session, as Codex does",
    "store": "OpenAI's dashboard storage; completions are not stored here",
    "service_tier": "OpenAI's price tiers; there is one tier here",
    "prompt_cache_key": "a routing hint; the prefix cache works without it",
    "prompt_cache_retention": "a cache lifetime hint; --radix-eviction-policy says what is evicted here",
    "prompt_cache_options": "cache hints; the prefix cache works without them",
    "cache_control": "Anthropic's cache hints; likewise",
    "guided_decoding_backend": "names one of vLLM's libraries; there is one here",
    "prediction": "a guess at the answer that may make it faster; it changes no token",
    "audio": "says how an answer in audio sounds; modalities that ask for one are refused",
}

_EMPTY: tuple[object, ...] = (False, "", [], {})


@dataclasses.dataclass(frozen=True)
class NotYet:
    """A field that is refused.

    Attributes:
        neutral: values that ask for nothing, and pass.
        instead: what the client can do for now.
    """

    neutral: tuple[object, ...] = ()
    instead: str = ""

    def passes(self, value: object) -> bool:
        return any(type(value) is type(n) and value == n for n in (*_EMPTY, *self.neutral))


NOT_YET: Mapping[str, NotYet] = {
    # sampling
    "best_of": NotYet((1, 0), "use n"),
    "use_beam_search": NotYet(),
    "length_penalty": NotYet((1, 1.0)),
    "stop_regex": NotYet(),
    "allowed_token_ids": NotYet(instead="use logit_bias"),
    "bad_words": NotYet(instead="use logit_bias"),
    "logprob_token_ids": NotYet(),
    "repetition_detection": NotYet(),
    "custom_logit_processor": NotYet(),
    "custom_params": NotYet(),
    "truncate_prompt_tokens": NotYet(instead="start the server with --allow-auto-truncate, or shorten the prompt"),
    "stream_interval": NotYet((1,), "start the server with --stream-interval"),
    # chat
    "chat_template": NotYet(instead="start the server with --chat-template"),
    "documents": NotYet(instead="put them in a message"),
    "verbosity": NotYet(("medium",)),
    "web_search_options": NotYet(),
    "moderation": NotYet(),
    "modalities": NotYet((["text"],)),
    "input_ids": NotYet(instead="use /v1/completions or /generate"),
    # responses and Anthropic's messages
    "conversation": NotYet(instead="use previous_response_id"),
    "context_management": NotYet(),
    "container": NotYet(),
    "mcp_servers": NotYet(),
    # completions
    "suffix": NotYet(),
    "prompt_embeds": NotYet(),
    "return_tokens_as_token_ids": NotYet(instead="use return_token_ids"),
    # the engine
    "lora_path": NotYet(),
    "session_params": NotYet(),
    "session_id": NotYet(),
    "return_hidden_states": NotYet(),
    "return_routed_experts": NotYet(),
    "mm_processor_kwargs": NotYet(),
    "media_io_kwargs": NotYet(),
    "kv_transfer_params": NotYet(),
    "bootstrap_host": NotYet(),
    "bootstrap_port": NotYet(),
    "bootstrap_room": NotYet(),
    "dp_rank": NotYet((0,), "use routed_dp_rank"),
    "vllm_xargs": NotYet(),
    # native /generate
    "image_data": NotYet(),
    "video_data": NotYet(),
    "audio_data": NotYet(),
    "input_embeds": NotYet(),
    "token_ids_logprob": NotYet(),
    "background": NotYet(),
}


GRAMMAR_FIELDS = frozenset(  # implemented, but refused by a server with --grammar-backend none
    {"response_format", "json_schema", "regex", "ebnf", "structural_tag", "structured_outputs"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
BUDGET_FIELDS = frozenset({"thinking_token_budget", "max_thinking_tokens"})  # likewise, without a reasoning parser
TOOL_FIELDS = frozenset({"tools", "functions"})  # likewise, in conversations whose chat template does not write tools


def verdicts(known: Iterable[str], *, has_grammars: bool, has_reasoning: bool, has_tools: bool) -> dict[str, str]:
    """What becomes of each field of a request with a body: applied, metadata or refused; any other one is unknown.

    Args:
        known: names of the implemented fields.
        has_grammars: the server compiles grammars.
        has_reasoning: it knows how the model reasons.
        has_tools: the chat template writes tools.
    """
    names = frozenset(known)
    missing = (frozenset() if has_grammars else GRAMMAR_FIELDS) | (frozenset() if has_reasoning else BUDGET_FIELDS)
    if not has_tools and "tool_choice" in names:  # a parser on its own writes none
        missing |= TOOL_FIELDS
    applied = {name: "refused" if name in missing else "applied" for name in names}
    return dict.fromkeys(NOT_YET, "refused") | dict.fromkeys(METADATA, "metadata") | applied


def screen(data: Mapping[str, Any], known: Iterable[str], *, where: str = "") -> dict[str, Any]:
    """The fields of a request that its model implements.

    Args:
        data: the request, a JSON object.
        known: names of the implemented fields.
        where: path of the object within the request, such as "sampling_params.".

    Raises:
        InvalidRequestError: a field is not supported yet, or unknown.
    """
    names = set(known)
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if value is None:
            continue
        if name in names:
            kept[name] = value
        elif name in NOT_YET:
            _refuse(name, value, where)
        elif name not in METADATA:
            close = difflib.get_close_matches(name[:80], [*names, *METADATA], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidRequestError(
                f"unknown field: {where}{name[:200]}{hint}", param=f"{where}{name[:200]}", code="unknown_parameter"
            )
    return kept


def _refuse(name: str, value: object, where: str) -> None:
    rule = NOT_YET[name]
    if rule.passes(value):
        return
    hint = f" ({rule.instead})" if rule.instead else ""
    raise InvalidRequestError(
        f"not supported yet: {where}{name}{hint}", param=f"{where}{name}", code="unsupported_parameter"
    )


def check_tool_fields(
    tool: Mapping[str, Any], path: str, known: Collection[str], neutral: Mapping[str, object]
) -> None:
    """
    Args:
        path: of the tool in the request.
        known: fields that take effect.
        neutral: values of other fields that ask for nothing.

    Raises:
        InvalidRequestError: a field that is not known has another value.
    """
    for name, value in tool.items():
        if name not in known and (name not in neutral or value != neutral[name]):
            field = f"{path}.{name[:200]}"
            raise InvalidRequestError(f"not supported yet: {field}", param=field, code="unsupported_parameter")
