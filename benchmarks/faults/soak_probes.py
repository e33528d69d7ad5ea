"""Requests whose answers are known: asked while the server is idle, then again and again under load.

A greedy answer may change where two tokens are about equally likely, because another batch sums in another order. So a
probe remembers how far its tokens were ahead of the second best, and a change where that is less than `tie` is counted
as a tie. Logprobs are compared too: a cache that holds the wrong keys shows there before a token changes.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, Literal

import httpx

from benchmarks.faults.soak_traffic import Limits

Verdict = Literal["same", "tie", "other tokens", "other logprobs"]


@dataclasses.dataclass(slots=True)
class Tally:
    """The results of the repetitions.

    Attributes:
        drift: largest difference of a token's logprob from the first time.
        cached: repetitions that found some of their prompt in the prefix cache.
    """

    verdicts: dict[Verdict, int] = dataclasses.field(default_factory=dict)
    drift: float = 0.0
    cached: int = 0
    retracted: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """The first answer: its tokens, their logprobs, and how far each was ahead of the second best."""

    ids: list[int]
    logprobs: list[float]
    margins: list[float]


class Probes:
    """Args:
    tie: see above, a difference of logprobs.
    max_drift: logprobs may differ by this much.
    """

    def __init__(self, seed: int, limits: Limits, *, tie: float, max_drift: float) -> None:
        rng = random.Random(f"probes {seed}")
        top = min(limits.vocab_size, 4000)
        most = limits.max_model_len

        def ids(count: int) -> list[int]:
            return [rng.randrange(300, top) for _ in range(count)]

        shared = ids(most // 8)
        self.bodies = [
            _body(ids(1), 24),
            _body(ids(5), 48),
            _body(ids(40), 32),
            _body(ids(most // 3), 16),
            _body(shared + ids(3), 24),
            _body(shared + ids(9), 24),
            _body(shared[: most // 11], 24),
            _body(ids(20), 32, temperature=0.8, seed=7),
            _body(shared + ids(2), 32, temperature=1.0, top_p=0.9, top_k=40, sampling_seed=11),
        ]
        self.tally = Tally()
        self._tie, self._max_drift = tie, max_drift
        self._references: list[Reference] = []

    async def learn(self, client: httpx.AsyncClient) -> None:
        """Takes the first answers, one after the other."""
        for body in self.bodies:
            answer = (await client.post("/generate", json=body)).raise_for_status().json()
            meta = answer["meta_info"]
            logprobs = [triple[0] for triple in meta["output_token_logprobs"]]
            # Triples are best first. A drawn token's margin says nothing: it need not be near the best.
            greedy = body["sampling_params"].get("temperature") == 0
            margins = [best[0][0] - best[1][0] if greedy else float("inf") for best in meta["output_top_logprobs"]]
            self._references.append(Reference(answer["output_ids"], logprobs, margins))

    async def ask(self, client: httpx.AsyncClient, number: int) -> tuple[Verdict, str]:
        """Repeats one probe; the text says what differs.

        Raises:
            httpx.HTTPError: no answer, or not a 200.
        """
        answer = (await client.post("/generate", json=self.bodies[number])).raise_for_status().json()
        meta = answer["meta_info"]
        self.tally.cached += meta["cached_tokens"] > 0
        self.tally.retracted += meta["num_retractions"] > 0
        ids, logprobs = answer["output_ids"], [triple[0] for triple in meta["output_token_logprobs"]]
        verdict, text = self._compare(self._references[number], ids, logprobs)
        self.tally.verdicts[verdict] = self.tally.verdicts.get(verdict, 0) + 1
        if text:
            text = (
                f"probe {number} ({meta['prompt_tokens']} prompt tokens, {meta['cached_tokens']} cached, "
                f"{meta['num_retractions']} retractions): {text}"
            )
        return verdict, text

    def _compare(self, first: Reference, ids: Sequence[int], logprobs: Sequence[float]) -> tuple[Verdict, str]:
        same = next((i for i, (a, b) in enumerate(zip(first.ids, ids, strict=False)) if a != b), len(first.ids))
        drift = max((abs(a - b) for a, b in zip(first.logprobs[:same], logprobs, strict=False)), default=0.0)
        self.tally.drift = max(self.tally.drift, drift)
        if drift > self._max_drift:
            return "other logprobs", f"a logprob differs by {drift:.2g}"
        if same == len(first.ids) == len(ids):
            return "same", ""
        margin = first.margins[same] if same < len(first.ids) else float("inf")
        text = f"token {same} is another one (it was {margin:.2g} ahead, {len(ids)} of {len(first.ids)} tokens came)"
        return ("tie" if margin < self._tie else "other tokens"), text


def _body(ids: list[int], max_tokens: int, **sampling: Any) -> dict[str, Any]:
    params = {"temperature": 0} | sampling | {"max_new_tokens": max_tokens, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 2}
