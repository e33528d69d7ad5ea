"""Proposers: which tokens may come next. A step verifies such drafts all at once, and keeps the ones that it would have
sampled; so a proposer decides how many tokens a step gives, never which."""

import abc
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp


class KnownTokens(NamedTuple):
    """What the device knows of requests that decode.

    Attributes:
        token_ids: i32[B, L], the newest ones of each request, in order; anything outside of first … last.
        first: i32[B], the place of the first one that is known.
        last: i32[B], the place of the newest one.
    """

    token_ids: jax.Array
    first: jax.Array
    last: jax.Array


class Proposer(abc.ABC):
    """Runs on the device, in a program of its own before the step that verifies.

    Attributes:
        num_drafts: tokens that it proposes for a request, at most.
    """

    num_drafts: int

    @abc.abstractmethod
    def propose(self, known: KnownTokens) -> tuple[jax.Array, jax.Array]:
        """
        Returns:
            Tokens i32[B, num_drafts], and how many of them it means, i32[B].
        """


@dataclasses.dataclass(frozen=True)
class NgramProposer(Proposer):
    """Looks for the newest tokens earlier in the same request, and proposes what followed there.

    Of several places it takes the one where most tokens agree, and of these the last one. If the text ends before there
    are enough drafts, what lies between the two places is taken to repeat.

    Attributes:
        min_match, max_match: how many tokens have to agree, and how many are compared.
    """

    num_drafts: int
    min_match: int
    max_match: int

    def propose(self, known: KnownTokens) -> tuple[jax.Array, jax.Array]:
        token_ids, first, last = known.token_ids, known.first[:, None], known.last[:, None]
        length = token_ids.shape[1]
        place = jnp.arange(length, dtype=jnp.int32)[None]
        agrees = (place >= first) & (place < last)
        num_agreeing = jnp.zeros_like(token_ids)
        for back in range(self.max_match):
            earlier = jnp.pad(token_ids, ((0, 0), (back, 0)))[:, :length]
            wanted = jnp.take_along_axis(token_ids, jnp.maximum(last - back, 0), axis=1)
            agrees &= (earlier == wanted) & (place - back >= first)
            num_agreeing += agrees
        score = jnp.where(num_agreeing >= self.min_match, num_agreeing * length + place, -1)
        best = jnp.argmax(score, axis=1, keepdims=True).astype(jnp.int32)
        is_found = jnp.take_along_axis(score, best, axis=1)[:, 0] >= 0
        period = jnp.maximum(last - best, 1)
        ahead = jnp.arange(self.num_drafts, dtype=jnp.int32)[None] % period
        drafts = jnp.take_along_axis(token_ids, jnp.minimum(best + 1 + ahead, length - 1), axis=1)
        return drafts, jnp.where(is_found, self.num_drafts, 0)
