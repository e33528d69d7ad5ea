"""Routes of llama.cpp, SGLang and vLLM that are not here, and what to use: errors and docs/limitations.md say it."""

from collections.abc import Mapping
from typing import Final

_UPDATES = "POST /update_weights_from_disk or /update_weights_from_tensor; new weights get their version there"
_ONE_ENGINE = "nothing replaces it: ranks and devices are fixed at the start"
_ADAPTERS = "a model with the adapter merged into it"
_TIERS = "nothing replaces it: the prefix cache has no tiers beyond the device"
_BETWEEN_SERVERS = "each server's own POST /update_weights_from_disk: servers do not send weights to each other"
_TOKENS_IN = "POST /v1/completions with token ids as prompt and return_token_ids, or POST /generate with input_ids"
_EXPERTS = "nothing replaces it: the loads of experts are not recorded"

MISSING: Final[Mapping[tuple[str, ...], str]] = {
    ("/completion", "/completions"): "POST /v1/completions",
    ("/infill",): "POST /v1/completions, with the prompt of a model that fills in",
    ("/embedding", "/embeddings"): "POST /v1/embeddings",
    ("/slots",): "GET /v1/loads for the load, GET /v1/requests/{id}/explain for one request",
    (
        *("/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    ): _ADAPTERS,
    (
        *("/init_weights_update_group", "/destroy_weights_update_group", "/update_weights_from_distributed"),
        *("/update_weights_from_ipc", "/begin_weight_update", "/end_weight_update", "/update_weight_version"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update"),
        *("/start_draft_weight_update", "/update_weights", "/finish_weight_update"),
    ): _UPDATES,
    ("/weight_info",): "GET /model_info, which has weight_version",
    ("/get_weights_by_name", "/weights_checker", "/weight_checker"): (
        "the checkpoint: all of its tensors are compared with the model when they are loaded"
    ),
    ("/get_world_size",): "GET /server_info, which has tp_size and dp_size",
    (
        *("/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance"),
        *("/get_remote_instance_transfer_engine_info", "/remote_instance_transfer_engine_info"),
    ): _BETWEEN_SERVERS,
    ("/open_session", "/close_session"): "the whole conversation in each request: the prefix cache keeps its beginning",
    ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"): "text: this server takes no audio",
    ("/v1/decisions", "/v1/systemone"): "POST /v1/chat/completions with response_format, or POST /v1/score",
    ("/generative_scoring",): "POST /v1/score with label_token_ids",
    ("/cohere/v2/chat", "/cohere/v2/chat/render"): "POST /v1/chat/completions, POST /v1/chat/completions/render",
    ("/inference/v1/generate",): _TOKENS_IN,
    ("/inference/v1/abort_requests",): "POST /abort_requests",
    ("/v1/chat/completions/derender", "/v1/completions/derender"): (
        "POST /v1/detokenize, POST /separate_reasoning and POST /parse_function_call"
    ),
    ("/vertex_generate",): "POST /invocations or POST /v1/chat/completions",
    (
        *("/start_expert_distribution_record", "/stop_expert_distribution_record"),
        "/dump_expert_distribution_record",
    ): _EXPERTS,
    (
        *("/scale_elastic_ep", "/is_scaling_elastic_ep", "/collective_rpc"),
        *("/fault_tolerance/apply", "/fault_tolerance/status"),
    ): _ONE_ENGINE,
    ("/hicache/storage-backend", "/hicache/storage-backend/clear", "/get_hicache_l3_cache_layout"): _TIERS,
    ("/pd_role_switch",): "one server: prefill and decode are not separate",
    ("/add_external_corpus", "/remove_external_corpus", "/list_external_corpora"): (
        "--speculative-algorithm NGRAM: drafts come from the request itself"
    ),
    ("/reset_mm_cache", "/reset_encoder_cache"): "nothing replaces it: without pictures there is no such cache",
    ("/kv_event_sources",): "--kv-events-config, which names the address that events are published at",
    ("/set_internal_state",): "the flags of the start; POST /configure_logging for the log",
    ("/set_trace_level",): "--enable-trace at the start",
    ("/slow_down",): "POST /pause_generation",
    ("/dumper/{method}",): "POST /start_profile, or --log-requests",
}
INSTEAD: Final[Mapping[str, str]] = {path: instead for paths, instead in MISSING.items() for path in paths}
_WITH_PARAMETER: Final = {path.partition("{")[0]: instead for path, instead in INSTEAD.items() if "{" in path}


def instead_of(path: str) -> str | None:
    """Return what to use instead of a route of another server; None: it has no such route."""
    folder = path[: path.rfind("/") + 1]
    return INSTEAD.get(path, _WITH_PARAMETER.get(folder))
