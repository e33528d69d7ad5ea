"""Counting the tokens of reasoning: from ids, whatever text was sent when."""

from collections.abc import Iterable

from palladio.http.reasoning.reasoning_parser import ReasoningParser
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


class ReasoningCounter:
    """Follows one sample token by token, with a parser of its own. The tokens of both tags count.

    Attributes:
        count: so far.

    Args:
        parser: a new one.
        params: what of the tokens is shown.
    """

    def __init__(self, parser: ReasoningParser, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.count = 0
        self._parser = parser
        self._text = tokenizer.new_stream(
            skip_special_tokens=params.skip_special_tokens, visible_special_ids=params.visible_special_ids
        )
        self._undecided = 0  # tokens that may be an opening tag

    def add(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            was_inside, text = self._parser.is_reasoning, self._text.push(token_id)
            if text and not self._undecided and self._parser.take_plain(text):
                self.count += was_inside
                continue
            self._parser.feed(text)
            if was_inside or self._parser.is_reasoning:
                self.count += self._undecided + 1
                self._undecided = 0
            else:
                is_part = self._parser.is_undecided or not text  # without text: the first bytes of a character
                self._undecided = self._undecided + 1 if is_part else 0
