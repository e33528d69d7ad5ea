"""Every family through everything that an engine does: the slow tier has all, the default tier one of each kind."""

from pathlib import Path

import numpy as np
import pytest

from tests import tiny_hybrids
from tests.many_devices import call_with_devices
from tests.model.make_goldens import GOLDENS, prompts_of
from tests.runtime.core import family_engine
from tests.runtime.core.family_engine import ONLY_WINDOWS, answer_under_pressure, has_experts, make_divisible
from tests.tiny_model import FAMILIES, make_checkpoint

QUICK = (("deepseek_v3", False),)  # tests/runtime/core/test_windows.py has the layers of gemma3


@pytest.mark.parametrize(
    ("family", "mixed"),
    [
        pytest.param(family, mixed, marks=() if (family, mixed) in QUICK else pytest.mark.slow)
        for family in FAMILIES
        for mixed in (False, True)
    ],
)
def test_nothing_changes_what_a_family_says(family: str, mixed: bool, tmp_path: Path) -> None:
    """Chunks, small pages, retraction for want of pages, mixed steps, and then a prompt once more, from the prefix
    cache: tokens are those of transformers."""
    golden, size = np.load(GOLDENS / f"{family}.npz")["tokens"], len(prompts_of(family)[-1])
    collector = answer_under_pressure(make_checkpoint(tmp_path, family), family, mixed=mixed)
    assert (sum(collector.num_retractions.values()) > 0) == (family not in ONLY_WINDOWS)
    assert collector.cached_tokens["again"] >= size - (8 if family in tiny_hybrids.CONFIGS else 4)
    found = [collector.tokens[name] for name in (*map(str, range(5)), "alone", "again")]
    assert found == [row.tolist() for row in (*golden[-5:], golden[-1][:8], golden[-1])]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", [*FAMILIES, "internlm2"])
def test_eight_devices_say_what_one_says(family: str, tmp_path: Path) -> None:
    """Divided heads, columns and experts, ranks of their own, and ranks that share experts."""
    path = make_divisible(tmp_path, family)
    found = call_with_devices(family_engine.__name__, "compare_meshes", str(path), family, timeout=1500)
    assert len(found) == (5 if has_experts(family) else 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "internlm2"])
def test_a_converted_checkpoint_is_the_same(family: str, tmp_path: Path) -> None:
    path = make_divisible(tmp_path / "stored", family)
    found = call_with_devices(family_engine.__name__, "compare_converted", str(path), str(tmp_path / "converted"))
    assert found >= 20
