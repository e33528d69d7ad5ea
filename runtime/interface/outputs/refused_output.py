"""What the engine told of a request that it refused."""

from palladio.runtime.interface.outputs.outputs import RequestOutput


class RefusedOutputError(Exception):
    """The cause of the error that ends a request before its first output: what the engine told of it.

    Attributes:
        output: the refused sample's only one.
    """

    def __init__(self, output: RequestOutput) -> None:
        super().__init__(f"of request {output.request_id}")
        self.output = output
