"""What a page size costs in cached tokens: only whole pages of a prefix are shared.

    python benchmarks/page_sizes.py

Chats of some turns, each with a new message and an answer of random lengths, all of whose earlier pages are still
cached. Arithmetic on lengths by the prefix cache's rule (whole pages, and at least one token of a prompt is computed).
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from palladio.model.kv_cache import PAGE_SIZES


def chat(size: int, num_chats: int, num_turns: int, tokens: int, answer: int) -> tuple[float, float, float]:
    """Cached share of earlier tokens, tokens computed a turn, and tokens of the last page that stay empty.

    Args:
        size: tokens of a page. tokens, answer: of a message and of an answer on average.
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300, help="of a message")
    parser.add_argument("--answer", type=int, default=100, help="tokens")
    args = parser.parse_args(argv)
    for size in PAGE_SIZES:
        share, computed, empty = chat(size, args.chats, args.turns, args.tokens, args.answer)
        found = f"{share:.1%} of earlier tokens cached, {computed:.0f} computed a turn, {empty:.0f} empty"
        print(f"pages of {size:3}: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
