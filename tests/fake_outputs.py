"""What FakeEngine's outputs hold beside text: log-probabilities, and reports of the prefill."""

from collections.abc import Iterator, Sequence

from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import TokenLogprob
from palladio.runtime.interface.request.sampling_params import SamplingParams


def fake_prefill(request_id: str, index: int, prompt_ids: Sequence[int], cached_tokens: int) -> Iterator[RequestOutput]:
    """A report when the prefill begins, and one when it has ended."""
    size = len(prompt_ids)
    for count in (cached_tokens, size):
        progress = PrefillProgress(size, cached_tokens, count, 0.25)
        output = RequestOutput(request_id, index, "", [], None, None, None, size, 0, cached_tokens)
        output.progress = progress
        yield output


def fake_logprob(token_id: int, num_top: int, params: SamplingParams) -> TokenLogprob:
    """The chosen token is the likeliest, at -0.5; the next ids follow; the last of three or more is impossible. Tokens
    that are asked for have the negative of their ids."""
    top = [(token_id if k == 0 else (token_id + k) % 384, -0.5 - k) for k in range(num_top)]
    if num_top > 2:
        top[-1] = (top[-1][0], float("-inf"))
    asked = [(i, -0.5 if i == token_id else -float(i)) for i in params.logprob_token_ids or ()]
    return TokenLogprob(token_id, -0.5, tuple(top), tuple(asked))
