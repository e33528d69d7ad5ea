"""The KV cache's memory on a CPU: it is reserved, and costs what is used."""

import jax
import numpy as np

from palladio.runtime.telemetry.process_memory import private_bytes

PAGES = 16_384  # of 4 KiB


def test_a_pool_costs_what_is_written_to_it_and_reads_as_zeros(tiny):
    shape = tiny.core()._runner.shape
    before = private_bytes()
    (pool,) = shape.allocate_cache(PAGES)
    assert pool.nbytes == 64 * 2**20
    assert private_bytes() - before < 8 * 2**20
    write = jax.jit(lambda pool, page: pool.at[page].set(1.0), donate_argnums=0)
    pool = write(pool, 7)
    assert private_bytes() - before < 16 * 2**20  # in place: no copy has touched the others
    values = np.asarray(pool)
    assert (values[7] == 1).all()
    assert not values[:7].any()
    assert not values[8:].any()
