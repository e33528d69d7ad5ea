"""What README.md says of the embedded model is what evaluate.py measured."""

from pathlib import Path

import pytest

from scripts.train_default_model.judges import JUDGES, THOUGHTFUL
from scripts.train_default_model.score_table import recorded, table

pytestmark = pytest.mark.slow  # of a table of figures

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_shows_the_recorded_scores():
    found = recorded()
    text = README.read_text(encoding="utf-8")
    assert table(found["scores"]) in text
    assert f"{found['samples']} held-out questions a skill" in text
    assert f"perplexity of held-out stories is {found['perplexity']}" in text


def test_every_skill_is_scored():
    assert set(recorded()["scores"]) == {*JUDGES, *(f"{skill}, thinking" for skill in THOUGHTFUL)}
