"""Published models have their published number of parameters by their config.json, and fit where they are said to."""

import pytest

from tests.runtime.planning.published_models import MODELS, deploy

QUICK = ("gpt-oss-20b", "InternLM2.5-7B")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_a_published_model_is_planned(name: str) -> None:
    model = MODELS[name]
    one, config = deploy(model)
    assert one.num_parameters / 1e9 == pytest.approx(model.billions, rel=0.01)
    assert one.plan(config, one.estimated_workspace()).num_tokens > 50_000
