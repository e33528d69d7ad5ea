"""Faults of latent attention: its scores, its scale, and its kernels; and of what prompts have on a TPU."""

from tests.faults.fault import Fault

_ENGINE, _KERNELS = ("tests/runtime/core/test_every_family.py",), "tests/pallas_kernels/test_latent_attention_"

LATENT_FAULTS: tuple[Fault, ...] = (
    Fault(
        "the rotated part is left out of the scores",
        "model/layers/latent_attention.py",
        "q_rotated = by.rotations.rotate(q[..., sizes.plain_size :], rope)",
        "q_rotated = 0 * by.rotations.rotate(q[..., sizes.plain_size :], rope)",
        _ENGINE,
    ),
    Fault(
        "each rank takes the first experts for its own",
        "model/layers/moe.py",
        "part + num_parts * lax.axis_index(RANK_AXIS)",
        "part + 0 * lax.axis_index(RANK_AXIS)",
        ("tests/runtime/core/test_dp_attention.py",),
    ),
    Fault(
        "yarn's factor is on queries alone",
        "model/spec/rope_config.py",
        "return yarn_mscale(self.factor, self.mscale_all_dim or 0.0) ** 2",
        "return yarn_mscale(self.factor, self.mscale_all_dim or 0.0)",
        ("tests/model/layers/test_latent_attention.py",),
    ),
    Fault(
        "a query of the TPU kernel sees the next key",
        "pallas_kernels/latent_attention/tpu_kernel.py",
        "jnp.minimum(position + token, end - 1)",
        "jnp.minimum(position + token + 1, end - 1)",
        (_KERNELS + "tpu.py",),
    ),
    Fault(
        "the TPU kernel reads queries that are still on their way",
        "pallas_kernels/latent_attention/tpu_kernel.py",
        "        moved.wait(i)\n",
        "",
        (_KERNELS + "tpu.py",),
    ),
    Fault(
        "the kernel of a TPU turns heads the wrong way",
        "pallas_kernels/head_rotation/tpu.py",
        "[-sin[...], sin[...]]",
        "[sin[...], -sin[...]]",
        ("tests/pallas_kernels/test_head_rotation.py",),
    ),
    Fault(
        "a kernel that turns heads is not called",
        "model/layers/attention.py",
        "return can_rotate_heads(shape, rotated,",
        "return False and can_rotate_heads(shape, rotated,",
        ("tests/model/layers/test_head_rotation.py",),
    ),
    Fault(
        "decode steps get what XLA is told of prompts",
        "runtime/execution/programs/program.py",
        " and num_tokens >= LEAST_TOKENS",
        "",
        ("tests/runtime/execution/programs/test_compiler_options.py",),
    ),
    Fault(
        "the GPU kernel leaves out the rotated part",
        "pallas_kernels/latent_attention/triton_tile.py",
        "return (of_latent + of_rotated)",
        "return (of_latent + 0 * of_rotated)",
        (_KERNELS + "gpu.py",),
    ),
)
