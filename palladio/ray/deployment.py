"""app and deploy: the server as an application of Ray Serve."""

from typing import Any

from ray import serve

from palladio.ray.arguments import ServeArguments
from palladio.ray.replica import Replica
from palladio.ray.settings import deployment_settings


def app(args: dict[str, Any]) -> serve.Application:
    """The application that `serve run palladio.ray:app model_path=…` and a Serve configuration build.

    Args:
        args: flags of `palladio serve`, and the fields of ReplicaOptions.

    Raises:
        ConfigError: one of them is wrong; the message names it.
    """
    arguments = ServeArguments.of(args)
    made = serve.deployment(**deployment_settings(arguments))(serve.ingress()(Replica))
    return made.bind(arguments)


def deploy(*, route_prefix: str = "/", app_name: str = "palladio", blocking: bool = False, **args: Any) -> Any:
    """Runs the application on the Ray cluster of this process, and waits until it is ready.

    Args:
        args: see `app`.
        blocking: go on until Ctrl-C.

    Returns:
        Serve's handle of the deployment.

    Raises:
        ConfigError: an argument is wrong; the message names it.
        RuntimeError: the replicas could not start; the message is the engine's.
    """
    return serve.run(app(args), name=app_name, route_prefix=route_prefix, blocking=blocking)
