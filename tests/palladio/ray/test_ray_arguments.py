"""What a deployment on Ray Serve is told, and what Serve is told of it: without Ray."""

import subprocess
import sys

import pytest

from palladio.ray.arguments import ReplicaOptions, ServeArguments
from palladio.ray.settings import deployment_settings
from palladio.runtime.interface.errors import ConfigError
from tests.source_tree import ROOT

MODEL = {"model_path": "default"}


def test_flags_and_options_come_as_serve_run_has_them() -> None:
    given = {**MODEL, "tp-size": "2", "ui": "false", "served_model_name": ["a", "b"], "num_replicas": "3"}
    arguments = ServeArguments.of(given)
    assert arguments.flags == ("--model-path=default", "--tp-size=2", "--no-ui", "--served-model-name", "a", "b")
    assert arguments.options == ReplicaOptions(num_replicas=3)
    settings = deployment_settings(arguments)
    assert settings["num_replicas"] == 3
    assert settings["graceful_shutdown_timeout_s"] > arguments.drain_timeout == 60.0
    assert settings["ray_actor_options"] == {"num_cpus": 1.0, "resources": {}}


def test_objects_of_a_configuration_are_flags_in_json() -> None:
    given = {**MODEL, "default_chat_template_kwargs": {"enable_thinking": False}, "max_running_requests": None}
    flags = ServeArguments.of(given).flags
    assert flags == ("--model-path=default", '--default-chat-template-kwargs={"enable_thinking": false}')


@pytest.mark.parametrize(("look_back", "interval"), [(30.0, 10.0), (300.0, 10.0), (3.0, 1.0)])
def test_replicas_report_a_few_times_in_the_period_that_is_averaged(look_back: float, interval: float) -> None:
    given = {**MODEL, "max_replicas": 2, "look_back_period_s": look_back}
    assert deployment_settings(ServeArguments.of(given))["autoscaling_config"]["metrics_interval_s"] == interval


def test_replicas_are_scaled_by_the_engines_load() -> None:
    settings = deployment_settings(
        ServeArguments.of({**MODEL, "min_replicas": 2, "max_replicas": 5, "target_load": "0.5"})
    )
    scaling = settings["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 5)
    assert scaling["policy"] == {"policy_function": "palladio.ray.scaling:LoadPolicy", "policy_kwargs": {"target": 0.5}}
    assert "num_replicas" not in settings


def test_gpus_and_other_resources_are_reserved_for_each_replica() -> None:
    settings = deployment_settings(ServeArguments.of({**MODEL, "num_gpus": 2, "resources": {"fast_disk": 1}}))
    assert settings["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 2.0, "resources": {"fast_disk": 1.0}}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "model_path is required"),
        ({**MODEL, "port": 1}, "port has no effect under Ray Serve: Serve's proxies listen"),
        ({**MODEL, "--ssl-certfile": "x"}, "ssl_certfile has no effect"),
        ({**MODEL, "fastapi_root_path": "/x"}, "root_path has no effect"),
        ({**MODEL, "nnodes": 2}, "nnodes has no effect under Ray Serve: tpu and tpu_topology"),
        ({**MODEL, "api_server_count": 0}, "--api-server-count must be at least 1, got 0"),
        ({**MODEL, "tp_sise": 2}, "did you mean --tp-size"),
        ({**MODEL, "num_replicas": "two"}, "num_replicas must be a whole number, got 'two'"),
        ({**MODEL, "num_replicas": 1.5}, "num_replicas must be a whole number, got 1.5"),
        ({**MODEL, "num_replicas": True}, "num_replicas must be a whole number, got True"),
        ({**MODEL, "num_replicas": None}, "num_replicas must be a whole number, got None"),
        ({**MODEL, "num_replicas": 0}, "num_replicas must be at least 1"),
        ({**MODEL, "name": 3}, "name must be a string, got 3"),
        ({**MODEL, "target_load": 0}, "target_load must be > 0"),
        ({**MODEL, "target_load": "nan"}, "target_load must be > 0 and finite"),
        ({**MODEL, "hold_seconds": -1}, "hold_seconds must be ≥ 0"),
        ({**MODEL, "min_replicas": 2}, "min_replicas needs max_replicas"),
        ({**MODEL, "min_replicas": 3, "max_replicas": 2}, "max_replicas must be at least min_replicas 3, got 2"),
        ({**MODEL, "num_replicas": 2, "max_replicas": 2}, "leave it out with max_replicas"),
        ({**MODEL, "resources": "TPU"}, "resources must be an object"),
        ({**MODEL, "resources": {"disk": "x"}}, "resources.disk must be a number"),
        ({**MODEL, "tpu": "v6e"}, "tpu and tpu_topology need each other"),
        ({**MODEL, "tpu": "v6e", "tpu_topology": "2x2", "num_gpus": 1}, "not both"),
        ({**MODEL, "max_replicas": 2, "file_storage_path": "/x"}, "file_storage_path is the folder of one server"),
        ({**MODEL, "database_url": "postgresql://db/palladio"}, "database_url needs file_storage_path"),
        ({**MODEL, "blob_store": "s3://bucket/files"}, "blob_store needs file_storage_path"),
    ],
)
def test_what_is_wrong_is_named(given: dict, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeArguments.of(given)
    assert word in str(caught.value)


def test_replicas_share_a_folder_with_a_database() -> None:
    given = {**MODEL, "num_replicas": 2, "file_storage_path": "/shared", "database_url": "postgresql://db/palladio"}
    assert ServeArguments.of(given).options.num_replicas == 2


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(ServeArguments.of({**MODEL, "api_key": "secret"}))


def test_without_ray_an_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import palladio.ray.arguments, palladio.ray.tpu_slice, palladio.ray.scaling, palladio.ray.settings\n"
        "assert 'jax' not in sys.modules\n"
        "from palladio.runtime.interface.errors import ConfigError\n"
        "try:\n    from palladio.ray import deploy\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "palladio.ray needs Ray Serve: run `pip install '.[ray]'` in Palladio's repository" in done.stdout
