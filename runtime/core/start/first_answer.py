"""A first answer, compared with that of the portable implementation on the same device, with the same weights."""

import dataclasses
import logging
import math
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.device_shape import abstract_weights
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.kernel_choice import refusal
from palladio.runtime.core.start.build_scheduler import build_scheduler
from palladio.runtime.execution.compiled.program_cache import ProgramError
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.model_runner import ModelRunner
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import TokenLogprob, by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.state.request import Request

PROMPT_TOKENS, OUTPUT_TOKENS = 24, 8
# Mean difference of log-probabilities that rounding explains. Many units round products of float32 to fewer bits.
BOUNDS = {"float32": 0.02, "bfloat16": 0.1, "float16": 0.1}

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Attributes:
    attention, portable: backends of the attention in the engine's programs, and in those that it is compared with.
    differences: of the log-probability of each token of the answer.
    bound: of their mean.
    """

    attention: str
    portable: str
    differences: Sequence[float]
    bound: float

    @property
    def problem(self) -> str:
        """What is wrong, with numbers; "": nothing."""
        mean = sum(self.differences) / len(self.differences)
        if mean <= self.bound:  # false for NaN
            return ""
        found = ", ".join(f"{difference:.3g}" for difference in self.differences)
        return (
            f"the first answer differs from the portable implementation's: log-probabilities with the {self.attention} "
            f"kernels and with {self.portable} are {mean:.3g} apart in the mean, over the bound of {self.bound:g} "
            f"({found}); restart with --attention-backend {self.portable}, and report this"
        )


def compare_first_answer(config: EngineConfig, design: EnginePlan, runner: ModelRunner) -> FirstAnswer | None:
    """Answer a short prompt with the engine's programs, then find the same tokens' log-probabilities with portable
    kernels. Nothing else may run meanwhile; the pages that both use are free afterwards.

    Returns:
        None: the model generates nothing, no portable implementation takes its weights as they lie or it fails, or
            there is no room for the prompt.
    """
    room = min(design.limits.context_length, design.plan.num_tokens)
    if design.shape.pooling is not None or room <= PROMPT_TOKENS + OUTPUT_TOKENS:
        return None
    portable = _portable_programs(design)
    if portable is None:
        logger.info("The first answer is not compared: there is no portable implementation of this model's layout")
        return None
    begun, programs = time.perf_counter(), design.programs.built
    backend, portable_programs = portable
    prompt = _prompt(design.shape.num_valid_tokens)
    with programs.expecting_compiles():
        ours = _run(config, design, runner, prompt, OUTPUT_TOKENS)
        executor, failure = runner.executor.lend(portable_programs), None
        try:
            judge = ModelRunner(executor, design.model.eos_token_ids, is_lazy=True)
            asked = [*prompt, *(one.token_id for one in ours)]
            theirs = _run(config, design, judge, asked, 1, reads_prompt=True)[len(prompt) : len(asked)]
        except (ProgramError, jax.errors.JaxRuntimeError) as error:  # no fault of the kernels that serve
            failure = error
        finally:
            runner.executor.take_back(executor)
    if failure is not None:
        if not isinstance(failure, ProgramError):
            runner.executor.reset_state()  # a program that fails may have consumed its part
        logger.warning("The first answer is not compared: the portable implementation fails: %s", failure)
        return None
    differences = [_difference(one, other) for one, other in zip(ours, theirs, strict=True)]
    bound = BOUNDS.get(jnp.dtype(design.dtypes.activations).name, max(BOUNDS.values()))
    answer = FirstAnswer(design.kernels.attention, backend, differences, bound)
    if answer.problem:
        logger.warning("%s", answer.problem)
    else:
        logger.info(
            "The first answer agrees with the portable implementation (%s): mean difference of log-probabilities %.2g, "
            "bound %g, in %.1f s",
            *(backend, sum(differences) / len(differences), bound, time.perf_counter() - begun),
        )
    return answer


def _portable_programs(design: EnginePlan) -> tuple[str, StepPrograms] | None:
    """The engine's programs on XLA's operations, or, where these are the engine's own, on plain jnp. They are compiled
    when they are called."""
    backend = "reference" if design.kernels.attention == "xla" else "xla"
    kernels = Kernels(backend, Target.of(design.device))
    if refusal(kernels, design.layout.config, design.shape) is not None:
        return None
    structure, weights = abstract_weights(design.model, design.dtypes, design.shape.mesh, kernels)
    _, own = abstract_weights(design.model, design.dtypes, design.shape.mesh, design.kernels)
    if jax.tree.map(_form, weights) != jax.tree.map(_form, own):
        return None
    programs = design.programs
    static = programs.design.model._replace(structure=structure)
    state = design.shape.abstract(weights, design.plan.num_pages)
    return backend, StepPrograms(static, state, design.shape, programs.buckets, programs.built.sibling())


def _form(array: jax.ShapeDtypeStruct) -> tuple[tuple[int, ...], str]:
    return array.shape, jnp.dtype(array.dtype).name


def _prompt(num_tokens: int) -> list[int]:
    """Random ids: what a model says of them differs from token to token."""
    ids: list[int] = np.random.default_rng(0).integers(0, num_tokens, PROMPT_TOKENS).tolist()
    return ids


def _run(
    config: EngineConfig,
    design: EnginePlan,
    runner: ModelRunner,
    prompt: list[int],
    num_tokens: int,
    *,
    reads_prompt: bool = False,
) -> list[TokenLogprob]:
    """Run one request alone, greedily, with a scheduler and pages of its own. Returns the log-probabilities of its
    tokens, or of its prompt's.

    Raises:
        RuntimeError: the scheduler has no step for it, a defect.
    """
    cache = dataclasses.replace(config.cache, disable_radix_cache=True, kv_events_config=None)
    alone = dataclasses.replace(config, cache=cache)
    scheduler = build_scheduler(
        alone, design.limits, runner.buckets(), design.plan.num_pages, design.shape.page_groups, design.seed
    )
    params = SamplingParams(
        max_tokens=num_tokens,
        temperature=0.0,
        ignore_eos=True,
        seed=0,
        logprobs=0,
        prompt_logprobs=0 if reads_prompt else None,
    )
    scheduler.add(Request.of(GenerationRequest("first answer", prompt, params)))
    found: list[TokenLogprob] = []
    while scheduler.has_requests:
        planned = scheduler.schedule()
        if planned is None:
            raise RuntimeError("no step can be scheduled for the first answer. Please report this bug")
        rows = runner.read(runner.sample(runner.forward(planned), None))
        for output in by_request(scheduler.process(planned, rows)):
            found += (output.prompt_logprobs if reads_prompt else output.logprobs) or []
    return found


def _difference(one: TokenLogprob, other: TokenLogprob) -> float:
    if one.logprob is None or other.logprob is None:
        return math.nan
    return abs(one.logprob - other.logprob)
