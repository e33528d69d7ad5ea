"""PoolingSpec: the steps from the hidden states of a text's tokens to its vector, as values."""

import dataclasses
from typing import Literal

PoolingMethod = Literal["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]
"""Which hidden states of a text: that of its first token, the largest of each number, the mean, the sum divided by the
root of the length, the mean with the weights 1, 2, 3, …, or that of its last token."""

Activation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


@dataclasses.dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer with an activation.

    Attributes:
        folder: where its weights are, below the model's folder.
        num_inputs, num_outputs: sizes of a vector.
        adds_input: its input is added to the result, through a matrix of its own if the sizes differ.
    """

    folder: str
    num_inputs: int
    num_outputs: int
    has_bias: bool = True
    activation: Activation = "tanh"
    adds_input: bool = False

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Its tensors in sentence-transformers' files, with their shapes; matrices are [outputs, inputs]."""
        matrix = self.num_outputs, self.num_inputs
        found: dict[str, tuple[int, ...]] = {"linear.weight": matrix}
        if self.has_bias:
            found["linear.bias"] = (self.num_outputs,)
        if self.adds_input and self.num_inputs != self.num_outputs:
            found["residual.weight"] = matrix
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class VectorNorm:
    """Layer normalization of a vector, with scale and bias.

    Attributes:
        folder: where its weights are, below the model's folder.
        size: numbers of a vector.
    """

    folder: str
    size: int

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Its tensors in sentence-transformers' files, with their shapes."""
        return {"norm.weight": (self.size,), "norm.bias": (self.size,)}


@dataclasses.dataclass(frozen=True, slots=True)
class Normalize:
    """Division by the vector's length."""

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {}


VectorStep = Dense | VectorNorm | Normalize


@dataclasses.dataclass(frozen=True, slots=True)
class PoolingSpec:
    """How a text gets its vector.

    Attributes:
        methods: of the hidden states after the final norm. The vectors of several stand one behind the other. Empty:
            a text has a vector for each token, and no other.
        steps: what is done to that vector, in order.
        token_steps: what is done to each token's hidden state before.
        includes_prompt: false: the tokens of a prompt before the text do not count.
        gives_tokens: a text can have a vector for each token (as well): its hidden states after `token_steps`. Only of
            models that compute a text in one step.
    """

    methods: tuple[PoolingMethod, ...] = ("last",)
    steps: tuple[VectorStep, ...] = (Normalize(),)
    token_steps: tuple[VectorStep, ...] = ()
    includes_prompt: bool = True
    gives_tokens: bool = False

    @property
    def name(self) -> str:
        """The methods, for logs and answers: "mean", or "cls+mean"; "tokens" if there are none."""
        return "+".join(self.methods) or "tokens"

    @property
    def reads_all(self) -> bool:
        """Whether it needs hidden states that were computed before a text's last step; what was cached has none."""
        return self.num_carried > 0 or self.gives_tokens or not self.methods

    @property
    def num_carried(self) -> int:
        """Vectors that are kept from step to step of a text whose prompt is computed in several."""
        return sum(method != "last" for method in self.methods)

    @property
    def normalizes(self) -> bool:
        """Whether the text's vector has length 1."""
        return self.steps[-1:] == (Normalize(),)

    @property
    def tensors(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Folder, name and shape of each tensor that the steps need, in the order in which they take them."""
        return tuple(
            (step.folder, name, shape)
            for step in (*self.token_steps, *self.steps)
            if not isinstance(step, Normalize)
            for name, shape in step.tensors.items()
        )

    def token_size(self, hidden_size: int) -> int:
        """Numbers of a token's vector, of a model whose hidden states have `hidden_size`."""
        return _size_after(self.token_steps, hidden_size)

    def size(self, hidden_size: int) -> int:
        """Numbers of a text's vector, of a model whose hidden states have `hidden_size`."""
        return _size_after(self.steps, self.token_size(hidden_size) * max(1, len(self.methods)))


def _size_after(steps: tuple[VectorStep, ...], size: int) -> int:
    for step in steps:
        if isinstance(step, Dense):
            size = step.num_outputs
    return size
