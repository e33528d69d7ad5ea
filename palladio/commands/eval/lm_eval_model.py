"""Palladio as a model of EleutherAI's lm-eval, without HTTP in between. Imported only where lm-eval is installed."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from palladio.commands.eval.engine_scores import EngineScores
from palladio.runtime.interface.request.sampling_params import SamplingParams

_USUAL_ANSWER = 256  # tokens, where a task says nothing; lm-eval's own default


class PalladioLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """
    Args:
        name: of the model, for lm-eval's caches.
    """

    def __init__(self, scores: EngineScores, name: str) -> None:
        super().__init__()
        self._scores = scores
        self._name = name

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    @property
    def max_length(self) -> int:
        return self._scores.context_length

    @property
    def eot_token_id(self) -> int:
        tokenizer = self._scores.tokenizer
        return tokenizer.eos_token_id or 0

    @property
    def prefix_token_id(self) -> int:
        """What predicts a text's first token: the beginning of a sequence, or else the end of the one before."""
        begin = self._scores.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self._scores.tokenizer.encode(string, add_special_tokens is not False)

    def apply_chat_template(self, chat_history: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        return self._scores.tokenizer.render_chat(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """For lm-eval's records."""
        found = self._scores.tokenizer.chat_template
        return found if chat_template and isinstance(found, str) else None

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **options: Any
    ) -> list[tuple[float, bool]]:
        found = self._scores.likelihoods([(context, continuation) for _, context, continuation in requests])
        return [(one.logprob, one.is_greedy) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[int, list[int], list[int]]] = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            windows += [(number, *make_disjoint_window(window)) for window in rolling]
        sums = [0.0] * len(requests)
        found = self._scores.likelihoods([(context, continuation) for _, context, continuation in windows])
        for (number, _, _), one in zip(windows, found, strict=True):
            sums[number] += one.logprob
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return self._scores.answers([(self.tok_encode(text), _params(asked)) for text, asked in map(_args, requests)])


def _args(request: Any) -> tuple[str, dict[str, Any]]:
    text, asked = request.args
    return text, asked


def _params(asked: dict[str, Any]) -> SamplingParams:
    """Translate lm-eval's parameters; greedy, unless a task samples."""
    until = asked.get("until") or ()
    fields = {name: asked[name] for name in ("top_p", "top_k", "min_p") if asked.get(name) is not None}
    most = next((asked[name] for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if name in asked), None)
    samples = bool(asked.get("do_sample", float(asked.get("temperature") or 0.0) > 0))
    return SamplingParams(
        max_tokens=int(most or _USUAL_ANSWER),
        temperature=float(asked.get("temperature") or 1.0) if samples else 0.0,
        stop=(until,) if isinstance(until, str) else tuple(text for text in until if text),
        seed=0,
        **fields,
    )
