"""Which log-probabilities belong to the texts of a message, and not to its reasoning, its calls and their marks."""

import dataclasses
from collections.abc import Iterable, Sequence

from palladio.http.chat.chat_output import MessagePiece, MessagePlan
from palladio.runtime.interface.outputs.token_output import TokenLogprob
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(slots=True)
class _Group:
    """The tokens that come out together: the bytes of a character may be several."""

    entries: list[TokenLogprob] = dataclasses.field(default_factory=list)
    text: str = ""

    def add_entry(self, entry: TokenLogprob) -> None:
        self.entries.append(entry)

    def add(self, character: str) -> None:
        self.text += character

    def take_entries(self) -> list[TokenLogprob]:
        """The tokens, which are then gone from here."""
        entries, self.entries = self.entries, []
        return entries

    def drop(self, count: int) -> None:
        """Drops the first characters."""
        self.text = self.text[count:]


class TextLogprobs:
    """Follows one sample token by token, with a parser of its own: how outputs are cut makes no difference.

    A token belongs to a text if a part of it came out as that text. Tokens at the end that make no text, such as the
    end of the sequence, belong to none.
    """

    def __init__(self, plan: MessagePlan, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._parser = plan.new_text_parser()
        self._text = tokenizer.new_stream(
            skip_special_tokens=params.skip_special_tokens, visible_special_ids=params.visible_special_ids
        )
        self._texts: list[list[TokenLogprob]] = []
        self._undecided: list[_Group] = []
        self._silent = _Group()
        self._inside = False  # the last text goes on

    def add(self, logprobs: Iterable[TokenLogprob], *, ends: bool) -> None:
        """Take the next tokens.

        Args:
            ends: these are the last tokens.
        """
        for entry in logprobs:
            self._silent.add_entry(entry)
            self._feed(self._text.push(entry.token_id))
        if ends:
            self._feed(self._text.flush())
            self._decide(self._parser.finish())

    def of(self, position: int) -> Sequence[TokenLogprob]:
        """Return the tokens of a text; texts are counted from 0."""
        return self._texts[position] if position < len(self._texts) else ()

    def _feed(self, text: str) -> None:
        if not text:
            return
        group, self._silent = self._silent, _Group()
        for character in text:
            if not self._undecided or self._undecided[-1] is not group:
                self._undecided.append(group)
            group.add(character)
            self._decide(self._parser.feed(character))

    def _decide(self, pieces: Iterable[MessagePiece]) -> None:
        for piece in pieces:
            if not piece.content:
                self._inside = False
                self._undecided = self._undecided[-1:]  # whose text may go on with something else
                continue
            if not self._inside:
                self._texts.append([])
                self._inside = True
            self._take(piece.content)

    def _take(self, content: str) -> None:
        """What is certain to be text stands at the end of what is undecided, but for what the parser still holds back.
        What is before it was a mark."""
        joined = "".join(group.text for group in self._undecided)
        begin = joined.rfind(content)
        while begin > 0 and joined.startswith(content, begin - 1):
            begin -= 1  # what is held back is the same once more
        position = 0
        end = begin + len(content)
        rest: list[_Group] = []
        for group in self._undecided:
            after = position + len(group.text)
            if after > begin and position < end:
                self._texts[-1] += group.take_entries()
            if after > end:
                group.drop(max(0, end - position))
                rest.append(group)
            position = after
        self._undecided = rest
