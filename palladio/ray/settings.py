"""Settings of the deployment for Serve: replicas, scaling, health checks, and what each replica reserves."""

from collections.abc import Mapping
from typing import Any

from palladio.ray.arguments import ReplicaOptions, ServeArguments

_POLICY = "palladio.ray.scaling:LoadPolicy"
_REPORT_INTERVAL = 10.0  # Serve's default of seconds between two figures of a replica
_STOP_MARGIN = 15.0  # seconds after --drain-timeout, for the engine's end


def deployment_settings(arguments: ServeArguments) -> dict[str, Any]:
    """Arguments of `serve.deployment`."""
    options = arguments.options
    settings: dict[str, Any] = {
        "name": options.name,
        "max_ongoing_requests": options.max_ongoing_requests,
        "graceful_shutdown_timeout_s": arguments.drain_timeout + _STOP_MARGIN,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": options.health_check_period_s,
        "max_constructor_retry_count": 3,  # what fails to start for a wrong flag fails again
        **_placement(options),
    }
    if options.max_replicas is None:
        settings["num_replicas"] = options.num_replicas
    else:
        settings["autoscaling_config"] = {
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "upscale_delay_s": options.upscale_delay_s,
            "downscale_delay_s": options.downscale_delay_s,
            "look_back_period_s": options.look_back_period_s,
            # An average of a few figures at least; Serve refuses to average over less than one.
            "metrics_interval_s": min(_REPORT_INTERVAL, options.look_back_period_s / 3),
            "policy": {"policy_function": _POLICY, "policy_kwargs": {"target": options.target_load}},
        }
    return settings


def _placement(options: ReplicaOptions) -> Mapping[str, Any]:
    actor: dict[str, Any] = {"num_cpus": options.num_cpus}
    if options.num_gpus:
        actor["num_gpus"] = options.num_gpus
    if options.slice is None:
        return {"ray_actor_options": {**actor, "resources": dict(options.resources)}}
    bundle = options.slice.first_bundle(options.num_cpus)
    resources = {name: amount for name, amount in bundle.items() if name != "CPU"} | dict(options.resources)
    return {
        "ray_actor_options": {**actor, "resources": resources},
        "placement_group_bundles": [bundle | dict(options.resources)],
        "placement_group_strategy": "STRICT_PACK",
    }
