"""A query and a document as one prompt, for models that say how well the one meets the other."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.request.pooling_params import EncodedText
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
JUDGE_WORDS = ("no", "yes")  # the answers of a model that judges
JUDGE_MARK = 'the answer can only be "yes" or "no"'  # a prompt that has it is one for such a model

_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    f"provided. Note that {JUDGE_MARK}.<|im_end|>\n<|im_start|>user\n"
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

PairFormat = Literal["paired", "joined", "judged"]
"""paired: query and document are tokenized each by itself, as transformers does with text and text_pair. joined: they
are one text. judged: Qwen3-Reranker's prompt, which ends where "yes" or "no" follows."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairPrompt:
    """Attributes:
    head, tail: stay whole, and have no special tokens but their own.
    body: may be cut at its end.
    query: stands before the body, and is tokenized by itself; then there is no head and no tail.
    """

    head: str
    body: str
    tail: str
    query: str = ""

    def encode(self, tokenizer: Tokenizer) -> EncodedText:
        """Its token ids, nothing cut."""
        if self.query:
            return tokenizer.encode_pair(self.query, self.body)
        head, tail = (tokenizer.encode(text, False) if text else [] for text in (self.head, self.tail))
        return EncodedText(head + tokenizer.encode(self.body, not self.head) + tail)


def pair_prompt(form: PairFormat, query: str, document: str, instruction: str | None = None) -> PairPrompt:
    """The prompt of a pair. A query that brings a reranker's prompt itself is joined with its document, as clients of
    vLLM write it.

    Args:
        instruction: what a reranker looks for; None: answers to a web search.
    """
    if form == "paired" and JUDGE_MARK not in query:
        return PairPrompt("", document, "", query)
    if form != "judged" or JUDGE_MARK in query:
        return PairPrompt("", query + document, "")
    body = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    return PairPrompt(_HEAD, body, _TAIL)
