"""The errors that Palladio raises, in one tree:

    PalladioError
    ├── InvalidRequestError          the request is wrong; names the field (HTTP 400)
    │   ├── ContextLengthError       prompt, or prompt + max_tokens, longer than the context (400)
    │   └── ModelNotFoundError       no such model is served here (404)
    ├── ConfigError                  a flag, a config value or a checkpoint is wrong; found at start-up
    │   └── CheckpointError          a weight is missing, unexpected, misshapen or unreadable
    ├── OverloadedError              try again later (503 with Retry-After)
    │   └── EngineNotReadyError      the engine is still loading or compiling, or it drains (503)
    ├── RequestAbortedError          the request was aborted before it ended (499)
    ├── GenerationError              the model or the server failed at this request; others go on (500)
    ├── HostLostError                another host that runs this model is not there, or no longer
    ├── DeadlineError                the request's timeout passed before it ended (504)
    └── EngineDeadError              the engine process ended; nothing can be answered (503)

Every message says what was wrong and what to change. The branch that a model can raise is rooted in `model.errors`.
"""

from palladio.model.errors import CheckpointError as CheckpointError
from palladio.model.errors import ConfigError as ConfigError
from palladio.model.errors import PalladioError as PalladioError


class InvalidRequestError(PalladioError, ValueError):
    """A request that can never be served as it stands.

    Attributes:
        param: the name of the offending field as the client sent it, or None.
        code: a machine-readable code in OpenAI's style, such as `context_length_exceeded`, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(InvalidRequestError):
    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class RenderLimitError(InvalidRequestError):
    """The chat template takes too long for the messages, or makes too much text of them."""


class ModelNotFoundError(InvalidRequestError):
    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class OverloadedError(PalladioError):
    """The server refuses new work for now.

    Attributes:
        retry_after: seconds after which a retry makes sense.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineNotReadyError(OverloadedError):
    pass


class RequestAbortedError(PalladioError):
    pass


class GenerationError(PalladioError):
    pass


class DeadlineError(PalladioError):
    pass


class HostLostError(PalladioError):
    pass


class EngineDeadError(PalladioError):
    pass


def request_error(status: int, message: str, param: str | None = None) -> PalladioError:
    """The error of a request that the engine ended with an HTTP status (0: an abort that somebody asked for).

    Args:
        param: the field that is wrong, if it is one.
    """
    match status:
        case 400:
            return InvalidRequestError(message, param=param)
        case 503:
            return OverloadedError(message)
        case 504:
            return DeadlineError(message)
        case 0 | 499:
            return RequestAbortedError(message)
        case _:
            return GenerationError(message)
