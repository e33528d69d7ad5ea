"""README.md's scores of the embedded model are those that evaluate.py measured."""

from pathlib import Path

from training.checks import CHECKS, THOUGHTFUL
from training.score_table import recorded, table

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_readme_shows_the_recorded_scores():
    found = recorded()
    text = README.read_text(encoding="utf-8")
    assert table(found["scores"]) in text
    assert f"{found['samples']} held-out questions a skill" in text
    assert f"perplexity of held-out stories is {found['perplexity']}" in text


def test_every_skill_is_scored():
    assert set(recorded()["scores"]) == {*CHECKS, *(f"{skill}, thinking" for skill in THOUGHTFUL)}
