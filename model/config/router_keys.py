"""Readers of router settings in config.json, by the key names of DeepSeek, which GLM uses too."""

from typing import Literal

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.layer_spec import RouterGroups, RouterSpec


def sigmoid_router(keys: Keys, experts: ExpertsConfig) -> RouterSpec:
    """Read the router of DeepSeek-V3 and its derivatives: sigmoids, and a bias that only affects the choice of experts.

    Raises:
        ConfigError: a key does not fit; the message names it.
    """
    return RouterSpec(
        renormalize=keys.flag("norm_topk_prob", default=True),
        score="sigmoid",
        bias="choice",
        groups=_groups(keys, experts, "best_two"),
        scale=keys.number("routed_scaling_factor"),
    )


def softmax_router(keys: Keys, experts: ExpertsConfig) -> RouterSpec:
    """Read the router of DeepSeek-V2: a softmax over all experts, not renormalized.

    Raises:
        ConfigError: a key does not fit; the message names it.
    """
    method = keys.values.get("topk_method")
    if method not in (None, "greedy", "group_limited_greedy"):
        raise ConfigError(f"topk_method: {shown(method)} is not supported; only greedy and group_limited_greedy")
    return RouterSpec(
        renormalize=False,
        groups=_groups(keys, experts, "best") if method == "group_limited_greedy" else None,
        scale=keys.number("routed_scaling_factor"),
    )


def plain_router(keys: Keys, experts: ExpertsConfig) -> RouterSpec:
    """Read the router of Mistral 4: a softmax over all experts, in DeepSeek-V3's groups.

    Raises:
        ConfigError: a key does not fit; the message names it.
    """
    return RouterSpec(
        renormalize=keys.flag("norm_topk_prob", default=True),
        groups=_groups(keys, experts, "best_two"),
        scale=keys.number("routed_scaling_factor"),
    )


def _groups(keys: Keys, experts: ExpertsConfig, score: Literal["best", "best_two"]) -> RouterGroups | None:
    """Read the groups of experts; None: all experts may be chosen."""
    number, kept = keys.optional_count("n_group") or 1, keys.optional_count("topk_group") or 1
    if kept > number:
        raise ConfigError(f"topk_group {kept} is greater than n_group {number}")
    if number == kept:
        return None
    size, left = divmod(experts.num_experts, number)
    if left or size < 2:
        raise ConfigError(f"n_group {number} must divide {experts.num_experts} experts into groups of two or more")
    if experts.num_chosen > kept * size:
        raise ConfigError(
            f"num_experts_per_tok {experts.num_chosen} is greater than the {kept * size} experts of topk_group {kept} "
            f"groups of {size}"
        )
    return RouterGroups(number=number, kept=kept, score=score)
