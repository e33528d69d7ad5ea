"""Fields of other servers and other routes: which pass as metadata, which are refused, and what to use instead."""

import dataclasses
from collections.abc import Mapping

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
    "cache_control": "Anthropic's cache hints; the prefix cache works without them",
    "cache_prompt": "llama.cpp's cache hint; the prefix cache works without it",
    "id_slot": "names a slot of llama.cpp to take cached tokens from; the prefix cache works without it",
    "n_cache_reuse": "llama.cpp's cache hint; the prefix cache works without it",
    "kv_hints": "SGLang's cache hints; the prefix cache works without them",
    "guided_decoding_backend": "names one of vLLM's libraries; there is one here",
    "disable_fallback": "says whether vLLM may use another of its libraries; there is one here",
    "prediction": "a guess at the answer that may make it faster; it changes no token",
    "draft_model": "LM Studio's choice of a draft model, which may make an answer faster; it changes no token",
    "audio": "says how an answer in audio sounds; modalities that ask for one are refused",
    "keep_alive": "says how long Ollama keeps a model loaded; the model stays loaded here",
    "ttl": "says how long LM Studio keeps a model loaded; the model stays loaded here",
    "provider": "says where OpenRouter sends a request",
    "route": "says how OpenRouter chooses where to send a request",
    "routing_key": "says to which worker a router sends a request",
    "conversation_id": "names a conversation for SGLang's router",
    "custom_labels": "labels for SGLang's metrics",
    "external_trace_header": "names a trace; the header traceparent does so here",
    "inference_geo": "says in which country Anthropic runs a request",
    "litellm_call_id": "LiteLLM's name of a request",
    "litellm_metadata": "LiteLLM's labels",
    "xtc_threshold": "acts only with xtc_probability, which is refused",
    "dry_base": "acts only with dry_multiplier, which is refused",
    "dry_allowed_length": "acts only with dry_multiplier, which is refused",
    "dry_penalty_last_n": "acts only with dry_multiplier, which is refused",
    "dry_sequence_breakers": "acts only with dry_multiplier, which is refused",
    "mirostat_tau": "acts only with mirostat, which is refused",
    "mirostat_eta": "acts only with mirostat, which is refused",
    "dynatemp_exponent": "acts only with dynatemp_range, which is refused",
    "smoothing_curve": "acts only with smoothing_factor, which is refused",
}

SAME_AS: Mapping[str, str] = {  # passes with the value of the other field, which is known
    "best_of": "n",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "random_seed": "seed",
    "sampling_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "rep_pen": "repetition_penalty",
    "stopping_strings": "stop",
}

_EMPTY: tuple[object, ...] = (False, "", [], {})


@dataclasses.dataclass(frozen=True)
class NotYet:
    """A field that is refused.

    Attributes:
        neutral: values that ask for nothing, and pass.
        instead: what the client can do for now.
        empty_asks: false, "", [] and {} ask for something, too.
    """

    neutral: tuple[object, ...] = ()
    instead: str = ""
    empty_asks: bool = False

    def passes(self, value: object) -> bool:
        neutral = self.neutral if self.empty_asks else (*_EMPTY, *self.neutral)
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


NOT_YET: Mapping[str, NotYet] = {
    # sampling
    "best_of": NotYet((1, 0), "use n; the same value passes"),
    "use_beam_search": NotYet(),
    "num_beams": NotYet((1,)),
    "early_stopping": NotYet(),
    "length_penalty": NotYet((1,)),
    "beam_width": NotYet((1,)),
    "bad_words": NotYet(instead="use logit_bias"),
    "banned_strings": NotYet(),
    "custom_token_bans": NotYet(instead="use logit_bias"),
    "stopping_strings": NotYet(instead="use stop; the same value passes"),
    "repetition_detection": NotYet(),
    "custom_logit_processor": NotYet(),
    "logits_processors": NotYet(),
    "custom_params": NotYet(),
    "truncate_prompt_tokens": NotYet(instead="start the server with --allow-auto-truncate, or shorten the prompt"),
    "truncation_side": NotYet(("left",), "truncate_prompt_tokens keeps the end of a prompt, as left does"),
    "stream_interval": NotYet((1,), "start the server with --stream-interval"),
    "detokenize": NotYet((True,), "leave it out, and use return_token_ids", empty_asks=True),
    "do_sample": NotYet((True,), "use temperature: 0", empty_asks=True),
    "typical_p": NotYet((1,), "use top_p or min_p"),
    "top_a": NotYet((0,), "use top_p or min_p"),
    "tfs": NotYet((1,), "use top_p or min_p"),
    "tfs_z": NotYet((1,), "use top_p or min_p"),
    "typical": NotYet((1,), "use top_p or min_p"),
    "min_keep": NotYet((0,)),
    "top_n_sigma": NotYet((-1, 0), "use min_p"),
    "epsilon_cutoff": NotYet((0,), "use min_p"),
    "eta_cutoff": NotYet((0,), "use min_p"),
    "xtc_probability": NotYet((0,)),
    "dry_multiplier": NotYet((0,), "use repetition_penalty"),
    "mirostat": NotYet((0,), "use temperature"),
    "mirostat_mode": NotYet((0,), "use temperature"),
    "dynatemp_range": NotYet((0,), "use temperature"),
    "adaptive_target": NotYet((-1, -0.01, 0), "use temperature"),
    "smoothing_factor": NotYet((0,), "use temperature"),
    "temperature_last": NotYet(),
    "samplers": NotYet(),
    "repeat_penalty": NotYet((1,), "use repetition_penalty"),
    "rep_pen": NotYet((1,), "use repetition_penalty"),
    "repeat_last_n": NotYet((-1, 64), "repetition_penalty looks at all tokens"),
    "encoder_repetition_penalty": NotYet((1,)),
    "no_repeat_ngram_size": NotYet((0,), "use repetition_penalty"),
    "penalty_alpha": NotYet((0,)),
    "guidance_scale": NotYet((1,)),
    "negative_prompt": NotYet(),
    "ban_eos_token": NotYet(instead="use ignore_eos"),
    "random_seed": NotYet(instead="use seed"),
    # lengths, by the names of other servers
    "n_predict": NotYet((-1,), "use max_tokens"),
    "num_predict": NotYet((-1,), "use max_tokens"),
    "max_new_tokens": NotYet(instead="use max_tokens"),
    "min_new_tokens": NotYet((0,), "use min_tokens"),
    "sampling_seed": NotYet(instead="use seed"),
    "max_length": NotYet(instead="use max_tokens"),
    "n_keep": NotYet((0, -1)),
    "n_probs": NotYet((0,), "use logprobs"),
    "t_max_predict_ms": NotYet((0, -1), "use timeout"),
    "truncate": NotYet(instead="use truncate_prompt_tokens"),
    "context_length_exceeded_behavior": NotYet(("error",), "use truncate_prompt_tokens"),
    # chat
    "chat_template": NotYet(instead="use /v1/chat/completions, or start the server with --chat-template"),
    "documents": NotYet(instead="put them in a message"),
    "web_search_options": NotYet(instead="leave it out: even an empty object asks for a web search", empty_asks=True),
    "moderation": NotYet(),
    "modalities": NotYet((["text"],)),
    "input_ids": NotYet(instead="use /v1/chat/completions, /generate, or prompt of /v1/completions"),
    "think": NotYet(instead="use thinking", empty_asks=True),
    "thinking_budget": NotYet(instead="use thinking_token_budget"),
    "reasoning_format": NotYet(
        ("auto", "deepseek", "parsed"), "use separate_reasoning or include_reasoning", empty_asks=True
    ),
    "prompt_mode": NotYet(instead="use reasoning_effort"),
    "enable_search": NotYet(),
    "search_parameters": NotYet(({"mode": "off"},)),
    "plugins": NotYet(),
    "transforms": NotYet(instead="use truncate_prompt_tokens"),
    "models": NotYet(instead="use model"),
    "data_sources": NotYet(instead="put the texts in a message"),
    "safe_prompt": NotYet(instead="put it in a system message"),
    "deferred": NotYet(instead="use /v1/batches"),
    "disable_tool_validation": NotYet(),
    "tool_stream": NotYet((True,)),
    "parse_tool_calls": NotYet((True,), "start the server with --tool-call-parser json", empty_asks=True),
    # output formats, by the names of other servers
    "format": NotYet(instead="use response_format"),
    "grammar": NotYet(instead="use ebnf"),
    # Ollama, and clients that send the SDK's own arguments
    "options": NotYet(instead="put its fields at the top level of the body"),
    "parameters": NotYet(instead="put its fields at the top level of the body"),
    "extra_body": NotYet(instead="put its fields at the top level of the body"),
    "extra_headers": NotYet(instead="send them as headers"),
    "inputs": NotYet(instead="use prompt"),
    "template": NotYet(instead="start the server with --chat-template"),
    "raw": NotYet(instead="use /v1/completions"),
    "images": NotYet(),
    # responses and Anthropic's messages
    "conversation": NotYet(instead="use previous_response_id"),
    "context_management": NotYet(),
    "container": NotYet(),
    "mcp_servers": NotYet(),
    "thread": NotYet(instead="send all messages", empty_asks=True),
    "speed": NotYet(("standard",)),
    # completions
    "suffix": NotYet(),
    "prompt_embeds": NotYet(),
    "return_tokens_as_token_ids": NotYet(instead="use return_token_ids"),
    "return_prompt_token_ids": NotYet(instead="use return_token_ids"),
    "return_tokens": NotYet(instead="use return_token_ids"),
    "return_token_offsets": NotYet(instead="send the request to the route's /render"),
    "return_full_text": NotYet(instead="use echo"),
    "echo_last": NotYet((0,), "use echo"),
    "decoder_input_details": NotYet(instead="use prompt_logprobs"),
    "top_n_tokens": NotYet((0,), "use logprobs"),
    "watermark": NotYet(),
    "raw_output": NotYet(),
    "post_sampling_probs": NotYet(),
    "response_fields": NotYet(),
    "timings_per_token": NotYet(instead="use return_timings"),
    "return_progress": NotYet(),
    # embeddings
    "normalize": NotYet((True,), empty_asks=True),
    "embed_dtype": NotYet(("float32",)),
    "endianness": NotYet(("native", "little")),
    "input_type": NotYet(instead="put the model's prefix before each text"),
    # the engine
    "lora": NotYet(),
    "lora_path": NotYet(),
    "adapter_id": NotYet(),
    "session_params": NotYet(),
    "session_id": NotYet(),
    "return_hidden_states": NotYet(),
    "return_routed_experts": NotYet(),
    "return_meta_info": NotYet(),
    "return_cached_tokens_details": NotYet(instead="usage has the number of cached tokens"),
    "use_audio_in_video": NotYet(),
    "mm_processor_kwargs": NotYet(),
    "media_io_kwargs": NotYet(),
    "kv_transfer_params": NotYet(),
    "bootstrap_host": NotYet(),
    "bootstrap_port": NotYet(),
    "bootstrap_room": NotYet(),
    "dp_rank": NotYet((0, -1), "use routed_dp_rank"),
    "data_parallel_rank": NotYet((0, -1), "use routed_dp_rank"),
    "vllm_xargs": NotYet(),
    # native /generate
    "image_data": NotYet(),
    "video_data": NotYet(),
    "audio_data": NotYet(),
    "return_bytes": NotYet(),
    "return_entropy": NotYet(),
    "return_sampling_mask": NotYet(),
    "return_output_logprob_only": NotYet(instead="use logprob_start_len: -1"),
    "return_flat_raw_top_logprobs": NotYet(instead="use top_logprobs_num"),
    "return_flat_raw_top_logprobs_b64": NotYet(instead="use top_logprobs_num"),
    "sampling_logprobs_mode": NotYet(),
    "require_reasoning": NotYet(),
    "background": NotYet(),
}

OF_OTHER_ROUTES: Mapping[str, NotYet] = {  # what else asks for nothing where a route has no such field
    "n": NotYet((1,)),
    "min_p": NotYet((0,)),
    "top_k": NotYet((-1, 0)),
    "top_logprobs": NotYet((0,)),
    "min_tokens": NotYet((0,)),
    "presence_penalty": NotYet((0,)),
    "frequency_penalty": NotYet((0,)),
    "repetition_penalty": NotYet((1,)),
    "logprob_start_len": NotYet((-1,)),
    "priority": NotYet((0,)),
    "verbosity": NotYet(("medium",)),
    "truncation": NotYet(("disabled",)),
    "tool_choice": NotYet(("auto", "none")),
    "response_format": NotYet(({"type": "text"},)),
    "stream_options": NotYet(({"include_usage": False},)),
    "usage": NotYet(({"include": True}, {"include": False})),  # of answers in one piece it is there
    "parallel_tool_calls": NotYet((True,)),
    "log_metrics": NotYet((True,), empty_asks=True),
    "thinking": NotYet(empty_asks=True),
    "enable_thinking": NotYet(empty_asks=True),
    "include_reasoning": NotYet((True,), empty_asks=True),
    "stream_reasoning": NotYet((True,), empty_asks=True),
    "separate_reasoning": NotYet((True,), empty_asks=True),
    "add_special_tokens": NotYet((True,), empty_asks=True),
    "skip_special_tokens": NotYet((True,), empty_asks=True),
    "spaces_between_special_tokens": NotYet((True,), empty_asks=True),
    "add_generation_prompt": NotYet((True,), empty_asks=True),
}

GRAMMAR_FIELDS = frozenset(  # implemented, but refused by a server with --grammar-backend none
    {"response_format", "json_schema", "regex", "ebnf", "structural_tag", "structured_outputs"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
BUDGET_FIELDS = frozenset({"thinking_token_budget", "max_thinking_tokens"})  # refused without a reasoning parser
EMBEDS_FIELDS = frozenset({"input_embeds"})  # refused without --enable-input-embeds
TOOL_FIELDS = frozenset({"tools", "functions"})  # refused where conversations take no tools
