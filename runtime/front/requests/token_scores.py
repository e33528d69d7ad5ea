"""How likely given tokens come next: requests of one token each, which give the log-probabilities of these tokens."""

import math
from collections.abc import Iterable, Sequence

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import MAX_LOGPROB_IDS, SamplingParams


def check_labels(label_token_ids: Sequence[int], vocab_size: int) -> None:
    """
    Raises:
        InvalidRequestError: there is none, or one is no token id of the model.
    """
    name = "label_token_ids"
    if not label_token_ids:
        raise InvalidRequestError.of("{param} must be a list of token ids", param=name)
    for label in label_token_ids:
        if not 0 <= label < vocab_size:
            message = "{param}: {label} is not a token id of this model (0 … {last})"
            raise InvalidRequestError.of(message, param=name, label=label, last=vocab_size - 1)


def next_token_requests(
    names: Sequence[str],
    prompts: Sequence[list[int]],
    labels: Sequence[int],
    *,
    received: float,
    options: RequestOptions = RequestOptions(),
) -> list[GenerationRequest]:
    """For each prompt as many requests as it takes to ask for all labels.

    Args:
        names: of the requests, see `num_requests`.
    """
    ids = list(dict.fromkeys(labels))
    parts = [tuple(ids[begin : begin + MAX_LOGPROB_IDS]) for begin in range(0, len(ids), MAX_LOGPROB_IDS)]
    asked = [(prompt, part) for prompt in prompts for part in parts]
    return [
        GenerationRequest(*(name, prompt, _params(part)), received=received, options=options, first_index=number)
        for number, (name, (prompt, part)) in enumerate(zip(names, asked, strict=True))
    ]


def num_requests(num_prompts: int, labels: Sequence[int]) -> int:
    """The number of requests that `next_token_requests` makes."""
    return num_prompts * -(-len(set(labels)) // MAX_LOGPROB_IDS)


def next_token_scores(
    outputs: Sequence[RequestOutput], num_prompts: int, labels: Sequence[int], *, apply_softmax: bool
) -> list[list[float]]:
    """The labels' scores for each prompt.

    Args:
        outputs: outputs of the requests of `next_token_requests`, in their order.
        apply_softmax: scores of a prompt add up to 1; else they are the tokens' probabilities.
    """
    each = len(outputs) // num_prompts
    rows = [_logprobs(outputs[begin : begin + each]) for begin in range(0, len(outputs), each)]
    return [_scores([row[label] for label in labels], apply_softmax) for row in rows]


def _params(asked: tuple[int, ...]) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=0, logprob_token_ids=asked)


def _logprobs(outputs: Iterable[RequestOutput]) -> dict[int, float]:
    return dict(pair for output in outputs for entry in output.logprobs or () for pair in entry.asked)


def _scores(logprobs: Sequence[float], apply_softmax: bool) -> list[float]:
    if not apply_softmax:
        return [math.exp(logprob) for logprob in logprobs]
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    whole = sum(weights)
    return [weight / whole for weight in weights]
