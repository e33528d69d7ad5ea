"""The gated delta rule, and the short convolution before it: layers that keep a state for each request."""

from palladio.pallas_kernels.gated_delta.api import DeltaRows, gated_delta, short_convolution

__all__ = ["DeltaRows", "gated_delta", "short_convolution"]
