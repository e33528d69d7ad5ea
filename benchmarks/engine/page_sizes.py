"""What a page size costs in cached tokens: only whole pages of a prefix are shared.

    python benchmarks/engine/page_sizes.py

Chats of some turns, each with a new message and an answer of random lengths, all of whose earlier pages are still
cached; and requests that share a prefix of random length, each with a question of its own. Arithmetic on lengths by the
prefix cache's rule (whole pages, and at least one token of a prompt is computed).
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from palladio.model.cache.kv_cache import PAGE_SIZES


def chat(size: int, num_chats: int, num_turns: int, tokens: int, answer: int) -> tuple[float, float, float]:
    """Return the cached share of earlier tokens, the tokens computed a turn, and the tokens of the last page that stay
    empty.

    Args:
        size: tokens of a page.
        tokens, answer: average tokens of a message and of an answer.
    """
    rng = np.random.default_rng(0)
    cached, earlier, computed, empty = 0, 0, 0, 0
    for _ in range(num_chats):
        length = 0
        for _ in range(num_turns):
            prompt = length + int(rng.integers(tokens * 5 // 6, tokens * 7 // 6 + 1))
            hit = min(length // size * size, (prompt - 1) // size * size)
            cached, earlier, computed = cached + hit, earlier + length, computed + prompt - hit
            length = prompt + int(rng.integers(answer // 2, answer * 3 // 2 + 1))
        empty += -length % size
    return cached / earlier, computed / num_chats / num_turns, empty / num_chats


def shared_prefix(size: int, num_prefixes: int, num_requests: int, prefix: int, question: int) -> tuple[float, float]:
    """Cached share of the prefixes' tokens, and tokens computed a request, after a first request of each prefix.

    Args:
        size: tokens of a page. prefix, question: tokens of one on average.
    """
    rng = np.random.default_rng(0)
    cached, known, computed = 0, 0, 0
    for _ in range(num_prefixes):
        length = int(rng.integers(prefix // 2, prefix * 3 // 2 + 1))
        for _ in range(num_requests):
            prompt = length + int(rng.integers(question // 2, question * 3 // 2 + 1))
            hit = min(length // size * size, (prompt - 1) // size * size)
            cached, known, computed = cached + hit, known + length, computed + prompt - hit
    return cached / known, computed / num_prefixes / num_requests


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300, help="of a message")
    parser.add_argument("--answer", type=int, default=100, help="tokens")
    parser.add_argument("--prefix", type=int, default=1000, help="tokens that requests share")
    parser.add_argument("--question", type=int, default=100, help="tokens of their own")
    args = parser.parse_args(argv)
    for size in PAGE_SIZES:
        share, computed, empty = chat(size, args.chats, args.turns, args.tokens, args.answer)
        found = f"{share:.1%} of earlier tokens cached, {computed:.0f} computed a turn, {empty:.0f} empty"
        print(f"pages of {size:3}, chat: {found}")
        share, computed = shared_prefix(size, args.chats, 64, args.prefix, args.question)
        print(f"pages of {size:3}, shared prefix: {share:.1%} of its tokens cached, {computed:.0f} computed a request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
