"""Where keys and values lie in the paged cache. This file is the only one that knows.

A layer's cache is one array [P, K, S, 2·Hp]: page, kv head, row in the page, then the key in lanes 0:H and the value in
lanes Hp:Hp+H. Hp is the head size rounded up to a whole TPU row of 128 lanes, except that heads of up to 64 share one
row (Hp = 64), so neither wastes memory on the most common sizes and no strided load is needed to read K or V.
"""

LANES = 128


def padded_head_size(head_size: int) -> int:
    """Lanes that one key or one value takes (Hp)."""
    if head_size <= LANES // 2:
        return LANES // 2
    return -(-head_size // LANES) * LANES


def kv_page_shape(num_pages: int, num_kv_heads: int, page_size: int, head_size: int) -> tuple[int, int, int, int]:
    """Shape of one layer's cache: [P, K, S, 2·Hp]."""
    return (num_pages, num_kv_heads, page_size, 2 * padded_head_size(head_size))
