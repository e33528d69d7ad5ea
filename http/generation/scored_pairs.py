"""Scores of pairs of texts, by whatever the served model can do: classes, embeddings, or saying "yes" or "no"."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from palladio.http.generation.context import Call, Context
from palladio.http.generation.embedded_texts import embedding_requests, run_requests, usage_of
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import check_paired_size, numbered_ids
from palladio.http.generation.vector_forms import in_form, vectors_of
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol_scores import ClassFields
from palladio.runtime.front.requests.token_scores import next_token_requests, next_token_scores
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec, cosine, largest_similarity
from palladio.runtime.interface.request.pooling_params import EncodedText, VectorKind
from palladio.runtime.text.tokenizers.pair_prompts import JUDGE_MARK, JUDGE_WORDS, PairFormat, PairPrompt, pair_prompt

MAX_PAIRS = 2048  # of one request, as many as texts of /v1/embeddings


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    """Attributes:
    scores: of each pair.
    usage: OpenAI's.
    """

    scores: list[float]
    usage: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PairScorer:
    """
    Attributes:
        body: whose options hold for all pairs.
        param: what the client calls the texts, for errors.
        instruction: see pair_prompt.
    """

    context: Context
    call: Call
    body: ClassFields
    param: str
    instruction: str | None = None

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scored:
        """
        Raises:
            PalladioError: what went wrong; among it, that the model cannot score pairs.
            HttpError: the client went away.
        """
        self.context.require_ready()
        uses_activation(self.body)
        if len(pairs) > MAX_PAIRS:
            message = f"{self.param} takes at most {MAX_PAIRS} texts, got {len(pairs)}"
            raise InvalidRequestError(message, param=self.param)
        spec = self.context.engine.info.embedding
        if spec is not None and self.instruction is not None and not (spec.classes is not None and spec.classes.judges):
            raise InvalidRequestError("instruct is only for rerankers that answer yes or no", param="instruct")
        with FieldMap(paths={"prompt": self.param}).renaming():
            if spec is None:
                return await self._judge(pairs)
            return await (self._embed(pairs, spec) if spec.classes is None else self._classify(pairs, spec))

    async def _classify(self, pairs: Sequence[tuple[str, str]], spec: EmbeddingSpec) -> Scored:
        classes = spec.classes
        assert classes is not None
        if len(classes.labels) != 1:
            raise InvalidRequestError(
                f"a score needs a model with one label, and this one has {len(classes.labels)}: use /v1/classify"
            )
        prompts = await self._encode(pairs, classes.pair_format, 0, spec)
        ends = await run_requests(self.context, self.call, self.body, embedding_requests(prompts, self.call, self.body))
        values = classes.values(vectors_of(ends, None, spec), use_activation=uses_activation(self.body))
        return Scored(values[:, 0].tolist(), usage_of(ends))

    async def _embed(self, pairs: Sequence[tuple[str, str]], spec: EmbeddingSpec) -> Scored:
        """The similarity of both texts' embeddings; each different text is computed once. Where the model makes a
        vector for each token, it is the sum of the largest products, of a query and a document as the model's prompts
        mark them; else the cosine."""
        is_of_tokens = "dense" not in spec.kinds
        if is_of_tokens and "tokens" not in spec.kinds:
            raise InvalidRequestError("this model makes sparse vectors, which score no pairs: use /v1/embeddings")
        kind: VectorKind = "tokens" if is_of_tokens else "dense"
        first, second = (spec.prompt(name if is_of_tokens else None) for name in ("query", "document"))
        marked = [(first + query, second + document) for query, document in pairs]
        texts = list(dict.fromkeys(text for pair in marked for text in pair))
        encode, truncation = self.context.encoder.encode, self._truncation(0)
        with_special = self.body.add_special_tokens is not False
        prompts = await run_encoding(
            lambda: [EncodedText(encode(spec.prepared(text), with_special, truncation)) for text in texts],
            sum(map(len, texts)),
        )
        requests = embedding_requests(prompts, self.call, self.body, (kind,))
        ends = await run_requests(self.context, self.call, self.body, requests)
        by_text = dict(zip(texts, in_form("tokens" if is_of_tokens else "float", ends, None, spec), strict=True))
        compare = largest_similarity if is_of_tokens else cosine
        scores = [compare(by_text[one], by_text[other]) for one, other in marked]
        return Scored(scores, usage_of(ends))

    async def _judge(self, pairs: Sequence[tuple[str, str]]) -> Scored:
        """The share of "yes" in the probabilities of both answers; without activation its log-odds."""
        words = judge_tokens(self.context)
        prompts = [prompt.ids for prompt in await self._encode(pairs, "judged", 1, None)]
        names = numbered_ids(request_name(self.body, self.call.request_id), len(prompts))
        options = self.call.options(self.body)
        requests = next_token_requests(names, prompts, words, received=time.time(), options=options)
        outputs = await run_requests(self.context, self.call, self.body, requests)
        rows = next_token_scores(outputs, len(prompts), words, apply_softmax=True)
        if uses_activation(self.body):
            return Scored([yes for _, yes in rows], usage_of(outputs))
        tiny = np.finfo(np.float64).tiny
        return Scored([float(np.log(max(yes, tiny)) - np.log(max(no, tiny))) for no, yes in rows], usage_of(outputs))

    async def _encode(
        self, pairs: Sequence[tuple[str, str]], form: PairFormat, reserved: int, spec: EmbeddingSpec | None
    ) -> list[EncodedText]:
        """Make and tokenize the prompts.

        Args:
            reserved: tokens of the context that are kept for the answer.
            spec: of the engine; None: it generates.
        """
        truncation = self._truncation(reserved)
        prepared = str if spec is None else spec.prepared
        has_types = spec is not None and spec.is_encoder

        def encode() -> list[EncodedText]:
            """Encode one prompt after the other: a long query with each of many documents may not fit in memory."""
            prompts = (
                pair_prompt(form, prepared(query), prepared(document), self.instruction) for query, document in pairs
            )
            found = (self._encode_one(prompt, truncation) for prompt in prompts)
            return [one if has_types else EncodedText(one.ids) for one in found]

        size = sum(len(query) + len(document) for query, document in pairs)
        check_paired_size(size, self.param)
        return await run_encoding(encode, size)

    def _encode_one(self, prompt: PairPrompt, truncation: Truncation | None) -> EncodedText:
        """A body that is cut loses its end, so that head and tail stay."""
        encoder = self.context.encoder
        if prompt.query:
            with_special = self.body.add_special_tokens is not False
            limit = None if truncation is None else truncation.limit
            return encoder.encode_pair(prompt.query, prompt.body, with_special, limit)
        head, tail = (encoder.encode(text, False) if text else [] for text in (prompt.head, prompt.tail))
        if truncation is not None:
            room = max(1, truncation.limit - len(head) - len(tail))
            truncation = Truncation(room, keeps_end=False)
        with_special = self.body.add_special_tokens is not False and not prompt.head
        return EncodedText(head + encoder.encode(prompt.body, with_special, truncation) + tail)

    def _truncation(self, reserved: int) -> Truncation | None:
        found = self.context.facts.truncation(self.body.truncate_prompt_tokens, reserved)
        return found and dataclasses.replace(found, keeps_end=False)


def is_judge(context: Context) -> bool:
    """Whether a generating model was made to judge documents: by its name, or by its chat template."""
    names = (context.engine.config.source.model_path, *context.names.shown)
    if any("reranker" in name.rstrip("/").rpartition("/")[2].lower() for name in names):
        return True
    tokenizer = context.engine.tokenizer
    return tokenizer is not None and JUDGE_MARK in (context.chat_template.source(tokenizer) or "")


def judge_tokens(context: Context) -> tuple[int, int]:
    """The ids of "no" and "yes" of a generating model that was made to judge documents.

    Raises:
        InvalidRequestError: it is not known to be one.
    """
    if not is_judge(context):
        raise InvalidRequestError(
            "this server generates text, and its model is not known to score pairs of texts: serve a reranker (with "
            "the word in its path or --served-model-name), or a model with one label or of embeddings with "
            "--is-embedding; for the probabilities of tokens give query, items and label_token_ids to /v1/score"
        )
    ids = [context.facts.tokenizer.encode(word, False) for word in JUDGE_WORDS]
    if any(len(each) != 1 for each in ids):
        raise InvalidRequestError('this model\'s tokenizer has no tokens "yes" and "no", which a reranker needs')
    return ids[0][0], ids[1][0]


def uses_activation(body: ClassFields) -> bool:
    """By any of vLLM's names.

    Raises:
        InvalidRequestError: two of them differ.
    """
    given = {
        name: value for name in ("use_activation", "activation", "softmax") if (value := vars(body)[name]) is not None
    }
    if len({*given.values()}) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} name the same parameter; give one", param=[*given][1])
    return next(iter(given.values()), True)
