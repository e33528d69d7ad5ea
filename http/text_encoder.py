"""Text → token ids, with a bound on the work: a text that cannot fit the context is refused before it is tokenized."""

from palladio.runtime.engine_client import EngineClient
from palladio.runtime.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.tokenizer import Tokenizer

LONG_TEXT = 50_000  # characters; longer texts are tokenized in a thread, so that streams keep flowing


class TextEncoder:
    """The tokenizer as the routes use it. Safe to use from several threads."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._longest_token = 0  # characters; found when first needed

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            InvalidRequestError: the server runs without one.
        """
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise InvalidRequestError(
                "the server runs with --skip-tokenizer-init: send token ids to /v1/completions or /generate"
            )
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """
        Raises:
            ContextLengthError: even with the longest token everywhere, the text would not fit the context.
        """
        if len(text) > LONG_TEXT:
            context_length = self._engine.info.context_length
            if len(text) > context_length * self._find_longest_token():
                raise ContextLengthError(
                    f"The input ({len(text)} characters) is longer than the model's context length "
                    f"({context_length} tokens) can hold. Send a shorter prompt.",
                    param="prompt",
                )
        return self.tokenizer.encode(text, add_special_tokens)

    def _find_longest_token(self) -> int:
        if not self._longest_token:
            tokenizer = self.tokenizer
            self._longest_token = max(len(tokenizer.token_text(i)) for i in range(tokenizer.vocab_size))
        return self._longest_token
