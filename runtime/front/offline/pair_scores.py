"""Scores of pairs of texts, of an offline engine that makes embeddings or classifies."""

import dataclasses
import time
import uuid
from collections.abc import Sequence

from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import (
    EMBEDDING_PARAMS,
    ClassSpec,
    EmbeddingSpec,
    cosine,
    largest_similarity,
    read_token_vectors,
    read_vectors,
)
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import EncodedText, VectorKind
from palladio.runtime.text.tokenizers.pair_prompts import pair_prompt
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class PairRequests:
    """Pairs of texts as requests.

    Attributes:
        requests: one for each pair on a model with one label; else one for each different text.
        places: for each pair the requests that it needs.
    """

    spec: EmbeddingSpec
    requests: list[GenerationRequest]
    places: list[tuple[int, ...]]

    def scores(self, outputs: Sequence[RequestOutput]) -> list[float]:
        """The score of each pair: the label's probability, the cosine of both vectors, or the sum of the largest
        products of their tokens' vectors.

        Args:
            outputs: of the requests, in order.
        """
        spec = self.spec
        vectors = read_vectors([output.embedding or b"" for output in outputs], None, spec) if _has_one(spec) else ()
        if spec.classes is not None:
            values = spec.classes.values(vectors)[:, 0]  # type: ignore[arg-type]  # there are dense vectors
            return [float(values[place[0]]) for place in self.places]
        if "dense" in spec.kinds:
            return [cosine(vectors[one], vectors[other]) for one, other in self.places]
        of_tokens = [read_token_vectors(output.token_vectors or b"", spec) for output in outputs]
        return [largest_similarity(of_tokens[one], of_tokens[other]) for one, other in self.places]


def _has_one(spec: EmbeddingSpec) -> bool:
    """Whether a text has one vector."""
    return spec.classes is not None or "dense" in spec.kinds


def labelled_pairs(engine: EngineClient, pairs: Sequence[Sequence[str]], instruct: str | None) -> PairRequests:
    """Pairs for a model with one label.

    Raises:
        InvalidRequestError: they are no pairs of texts, or the model does not score any.
    """
    spec, tokenizer = engine.info.embedding, engine.tokenizer
    if spec is None or spec.classes is None or len(spec.classes.labels) != 1:
        raise InvalidRequestError("Engine.rerank needs a model with one label, and is_embedding=True")
    if tokenizer is None:
        raise InvalidRequestError("Engine.rerank needs a tokenizer")
    if instruct is not None and not spec.classes.judges:
        raise InvalidRequestError("instruct is only for rerankers that answer yes or no", param="instruct")
    checked = [_checked(pair) for pair in pairs]
    return _with_labels(tokenizer, spec, spec.classes, checked, instruct)


def embedded_pairs(engine: EngineClient, query: str | Sequence[str], items: str | Sequence[str]) -> PairRequests:
    """Pairs of a query and items for whatever an engine of --is-embedding does.

    Args:
        query: a text for all items, or one for each.

    Raises:
        InvalidRequestError: they are no texts, not as many, or the model does not score pairs.
    """
    spec, tokenizer = engine.info.embedding, engine.tokenizer
    assert spec is not None
    if tokenizer is None:
        raise InvalidRequestError("Engine.score needs a tokenizer")
    others = [items] if isinstance(items, str) else list(items)
    ones = [query] * len(others) if isinstance(query, str) else list(query)
    if len(ones) != len(others):
        message = "{param} must be one text, or as many as items ({count}); got {found}"
        raise InvalidRequestError.of(message, param="query", count=len(others), found=len(ones))
    pairs = [_checked(pair) for pair in zip(ones, others, strict=True)]
    if spec.classes is not None:
        if len(spec.classes.labels) != 1:
            raise InvalidRequestError(f"a score needs a model with one label, this one has {len(spec.classes.labels)}")
        return _with_labels(tokenizer, spec, spec.classes, pairs, None)
    is_of_tokens = not _has_one(spec)
    if is_of_tokens and "tokens" not in spec.kinds:
        raise InvalidRequestError("this model makes sparse vectors, which score no pairs")
    first, second = (spec.prompt(name if is_of_tokens else None) for name in ("query", "document"))
    marked = [(first + one, second + other) for one, other in pairs]
    texts = {text: place for place, text in enumerate(dict.fromkeys(text for pair in marked for text in pair))}
    kind: VectorKind = "tokens" if is_of_tokens else "dense"
    requests = [_request(EncodedText(tokenizer.encode(spec.prepared(text))), (kind,)) for text in texts]
    return PairRequests(spec, requests, [(texts[one], texts[other]) for one, other in marked])


def _with_labels(
    tokenizer: Tokenizer, spec: EmbeddingSpec, classes: ClassSpec, pairs: list[tuple[str, str]], instruct: str | None
) -> PairRequests:
    requests = []
    for query, document in pairs:
        prompt = pair_prompt(classes.pair_format, spec.prepared(query), spec.prepared(document), instruct)
        encoded = prompt.encode(tokenizer)
        requests.append(_request(encoded if spec.is_encoder else EncodedText(encoded.ids), ("dense",)))
    return PairRequests(spec, requests, [(place,) for place in range(len(pairs))])


def _request(encoded: EncodedText, kinds: tuple[VectorKind, ...]) -> GenerationRequest:
    named = uuid.uuid4().hex, encoded.ids, EMBEDDING_PARAMS
    return GenerationRequest(*named, received=time.time(), pooling=encoded.pooling(kinds))


def _checked(pair: Sequence[str]) -> tuple[str, str]:
    if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) and text for text in pair):
        raise InvalidRequestError.of("{param} must be a list of pairs of texts, none of them empty", param="prompt")
    return pair[0], pair[1]
