"""RopeConfig: the rotary embedding's frequencies and their scaling to longer contexts."""

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError

MAX_CONTEXT = 1 << 27  # tokens; 13 times the longest that is published. Positions are int32
MAX_SECTION = 1 << 12  # frequencies

_BESIDE_SCALING = frozenset(
    ("rope_theta", "rope_type", "type", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
)
_OTHER_NAMES = {"su": "longrope", "mrope": "default"}  # of kinds, in older files

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of the first `fraction` of the head.

    Attributes:
        theta: base of the frequencies.
        fraction: fraction of the head that is rotated.
        is_interleaved: the pairs (2i, 2i + 1) are rotated; else (i, i + R/2).
        kind: scaling of the frequencies: default (none), linear, llama3, yarn or longrope; dynamic: none within the
            context, beyond which no request goes.
        factor: extension of the context, as a factor.
        original_max_position: context before the scaling.
        low_freq_factor, high_freq_factor: llama3: wavelengths between original/high and original/low are blended.
        beta_fast, beta_slow: yarn: rotations over the original context between which frequencies are blended.
        attention_factor: yarn, longrope: factor on cos and sin; None: computed from `factor`.
        mscale, mscale_all_dim: yarn: inputs of that computation where both are given.
        truncate: yarn: round the blended range to whole dimensions.
        long_divisors, short_divisors: longrope: divisor of each frequency, for contexts longer than the original one
            and for others.
        is_long: longrope: use the long divisors.
        axes: for each frequency, the axis of a position with several axes (mrope); (): all use the first one.
    """

    theta: float
    fraction: float = 1.0
    is_interleaved: bool = False
    kind: Literal["default", "dynamic", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    long_divisors: tuple[float, ...] = ()
    short_divisors: tuple[float, ...] = ()
    is_long: bool = True
    axes: tuple[int, ...] = ()

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        max_position: int,
        default_theta: float = 10000.0,
        *,
        is_interleaved: bool = False,
        default_fraction: float | None = None,
    ) -> Self:
        """Read rope_parameters (transformers 5), or rope_theta and rope_scaling (before). Where config.json has both
        objects, rope_scaling replaces the other one, its rope_theta as well, as in transformers.

        Args:
            default_theta: the base if the config gives none.
            is_interleaved: see the attribute.
            default_fraction: the rotated fraction of the head if the config gives none; None: all of it, always.

        Raises:
            ConfigError: an unknown kind of scaling, or a parameter is missing or out of range.
        """
        where, found = _parameters(config)
        keys = Keys(found, where)
        theta = keys.number("rope_theta", default=Keys(config).number("rope_theta", default=default_theta))
        if theta <= 1:
            raise ConfigError(f"{where}rope_theta must be greater than 1, found {theta}")
        _warn_of_lost_theta(config, where, theta)
        rope = cls(
            theta=theta,
            fraction=_fraction(config, keys, default_fraction),
            is_interleaved=is_interleaved,
            axes=_axes(keys, found),
        )
        return rope._scaled(config, keys, found, where, max_position)

    def _scaled(
        self, config: Mapping[str, Any], keys: Keys, found: Mapping[str, Any], where: str, max_position: int
    ) -> Self:
        """Return the rope with the scaling that `found`, the rope's object in `config`, asks for; `keys` reads it."""
        kind = _kind(found)
        if kind == "default":
            unused = sorted(key for key in found if key not in _BESIDE_SCALING)
            if unused:
                logger.warning(
                    "config.json: %s has no effect because %srope_type is default or missing", ", ".join(unused), where
                )
            return self
        if kind == "dynamic":
            return dataclasses.replace(self, kind="dynamic")
        if kind == "linear":
            return dataclasses.replace(self, kind="linear", factor=keys.number("factor"))
        # Some checkpoints keep the original length outside the rope object; transformers prefers that one.
        original = Keys(config).optional_count("original_max_position_embeddings", most=MAX_CONTEXT)
        if original is None:
            original = keys.optional_count("original_max_position_embeddings", most=MAX_CONTEXT) or max_position
        if kind == "llama3":
            low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
            if low >= high:
                raise ConfigError(f"{where}high_freq_factor must be greater than low_freq_factor {low}, found {high}")
            return dataclasses.replace(
                self,
                kind="llama3",
                factor=keys.number("factor"),
                original_max_position=original,
                low_freq_factor=low,
                high_freq_factor=high,
            )
        if kind == "yarn":
            return self._yarn(keys, found, where, original, max_position)
        if kind == "longrope":
            return self._longrope(keys, found, original, max_position)
        raise ConfigError(
            f"{where}rope_type: {shown(kind)} is not supported; supported: default, dynamic, linear, llama3, longrope, "
            "yarn"
        )

    def _yarn(self, keys: Keys, found: Mapping[str, Any], where: str, original: int, max_position: int) -> Self:
        optional: dict[str, Any] = {
            key: keys.number(key) for key in ("mscale", "mscale_all_dim", "beta_fast", "beta_slow") if found.get(key)
        }
        if found.get("attention_factor") is not None:
            optional["attention_factor"] = keys.number("attention_factor")
        factor = keys.number("factor", default=max_position / original)
        if factor * original > MAX_CONTEXT:
            raise ConfigError(
                f"{where}factor {factor} × {original} tokens exceeds the maximum context length of {MAX_CONTEXT} "
                "tokens; use a smaller factor"
            )
        return dataclasses.replace(
            self,
            kind="yarn",
            factor=factor,
            original_max_position=original,
            truncate=keys.flag("truncate", default=True),
            **optional,
        )

    def _longrope(self, keys: Keys, found: Mapping[str, Any], original: int, max_position: int) -> Self:
        given = found.get("attention_factor") is not None
        if original == 1 and not given:
            raise ConfigError("original_max_position_embeddings must be at least 2 for longrope, found 1")
        rope = dataclasses.replace(
            self,
            kind="longrope",
            factor=keys.number("factor", default=max_position / original),
            original_max_position=original,
            attention_factor=keys.number("attention_factor") if given else None,
            long_divisors=keys.numbers("long_factor"),
            short_divisors=keys.numbers("short_factor"),
        )
        return rope.for_context(max_position)

    @property
    def score_factor(self) -> float:
        """Factor on scores of latent attention for a longer context, in addition to that of the head size."""
        return yarn_mscale(self.factor, self.mscale_all_dim or 0.0) ** 2

    def for_context(self, length: int) -> Self:
        """Return the rope for sequences of up to `length` tokens. All of them use the same frequencies: those of cached
        keys cannot change when a sequence outgrows the original context."""
        is_long = self.kind != "longrope" or length > self.original_max_position
        return dataclasses.replace(self, is_long=is_long)

    def checked(self, head_size: int) -> Self:
        """Return the rope itself if it fits heads of this size.

        Raises:
            ConfigError: it does not fit.
        """
        rotated = self.rotated(head_size)
        if self.fraction < 1 and (rotated % 2 or not rotated):
            raise ConfigError(
                f"partial_rotary_factor {self.fraction} rotates {rotated} of the {head_size} dimensions of a head "
                "(head_dim); their number must be even (rotary embeddings rotate pairs) and not 0"
            )
        if self.axes and len(self.axes) != rotated // 2:
            raise ConfigError(
                f"mrope_section must add up to {rotated // 2} (half of the {rotated} dimensions of a head that are "
                f"rotated), found {len(self.axes)}"
            )
        if self.kind == "longrope" and {len(self.long_divisors), len(self.short_divisors)} != {rotated // 2}:
            raise ConfigError(
                f"long_factor and short_factor must have {rotated // 2} numbers (half of the {rotated} dimensions of a "
                f"head that are rotated), found {len(self.long_divisors)} and {len(self.short_divisors)}"
            )
        return self

    def rotated(self, head_size: int) -> int:
        """Return the number of rotated dimensions of a head (R)."""
        return int(head_size * self.fraction)

    def as_yarn(self, length: int, max_position: int) -> dict[str, Any]:
        """Return the YaRN rope_scaling for config.json that serves sequences of `length` tokens."""
        factor = float(math.ceil(length / max_position))
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": max_position}
        return (
            scaling
            | {"rope_theta": self.theta}
            | ({"partial_rotary_factor": self.fraction} if self.fraction < 1 else {})
        )

    def context_length(self, max_position: int) -> int:
        """Return the tokens of context: yarn is often switched on without raising max_position_embeddings."""
        if self.kind != "yarn":
            return max_position
        return max(max_position, int(self.factor * self.original_max_position))


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return yarn's factor on queries and keys."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _parameters(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the object that holds the rope's parameters, and its name (with a dot) for messages."""
    for name in ("rope_scaling", "rope_parameters"):
        found = config.get(name)
        if found is None or found == {}:
            continue
        if not isinstance(found, Mapping):
            raise ConfigError(f"{name} must be an object, found {shown(found)}")
        if any(isinstance(value, Mapping) for value in found.values()):
            raise ConfigError(f"{name}: different rotary embeddings for different layer types are not supported")
        return f"{name}.", found
    return "", {}


def _kind(found: Mapping[str, Any]) -> object:
    kind = found.get("rope_type", found.get("type", "default"))
    return _OTHER_NAMES.get(kind, kind) if isinstance(kind, str) else kind


def _axes(keys: Keys, found: Mapping[str, Any]) -> tuple[int, ...]:
    """Read mrope_section: the number of frequencies of each axis. Axes follow one another, or, if mrope_interleaved,
    alternate until each has its number; the first axis has the frequencies between and after the others."""
    given = found.get("mrope_section")
    if given is None:
        return ()
    if not isinstance(given, list) or not given:
        raise ConfigError(f"mrope_section must be a list of whole numbers, found {shown(given)}")
    sections = [Keys({"mrope_section": size}).count("mrope_section", most=MAX_SECTION) for size in given]
    if not keys.flag("mrope_interleaved", default=False):
        return tuple(axis for axis, size in enumerate(sections) for _ in range(size))
    axes, count = [0] * sum(sections), len(sections)
    for axis, size in enumerate(sections[1:], 1):
        places = range(axis, size * count, count)
        if len(places) and places[-1] >= len(axes):
            raise ConfigError(f"mrope_section: axis {axis} has too many frequencies to take turns, found {sections}")
        for place in places:
            axes[place] = axis
    return tuple(axes)


def _fraction(config: Mapping[str, Any], keys: Keys, default: float | None) -> float:
    """Read the rotated fraction of a head, which is in the rope's object or in config.json itself."""
    if default is None:
        given = keys.values.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if given != 1.0 and _kind(keys.values) == "default":  # transformers asks for it only where it scales
            logger.warning("config.json: partial_rotary_factor has no effect: this architecture rotates whole heads")
        else:
            keys.require("partial_rotary_factor", 1.0, default=1.0)
            Keys(config).require("partial_rotary_factor", 1.0, default=1.0)
        return 1.0
    outer = Keys(config).number("partial_rotary_factor", default=default)
    fraction = keys.number("partial_rotary_factor", default=outer)
    if fraction > 1:
        raise ConfigError(f"partial_rotary_factor must be at most 1, found {fraction}")
    return fraction


def _warn_of_lost_theta(config: Mapping[str, Any], where: str, theta: float) -> None:
    """Warn if rope_theta is lost: transformers 5 saves it within rope_parameters, and an added rope_scaling must repeat
    it."""
    replaced = config.get("rope_parameters")
    if where != "rope_scaling." or not isinstance(replaced, Mapping):
        return
    lost = replaced.get("rope_theta", theta)
    if lost != theta:
        logger.warning(
            "config.json: rope_scaling overrides rope_parameters, so rope_theta %s is ignored and %s is used. To keep "
            'it, add "rope_theta": %s to rope_scaling',
            lost,
            theta,
            lost,
        )
