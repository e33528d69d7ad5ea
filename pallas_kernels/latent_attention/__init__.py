"""Latent attention (MLA): queries of all heads over one row a token, in pages; and the write of these rows."""

from palladio.pallas_kernels.latent_attention.api import (
    BACKENDS,
    latent_attention,
    latent_cache_update,
    plan_latent_attention,
)
from palladio.pallas_kernels.latent_attention.layout import latent_page_shape, latent_shape

__all__ = [
    "BACKENDS",
    "latent_attention",
    "latent_cache_update",
    "latent_page_shape",
    "latent_shape",
    "plan_latent_attention",
]
