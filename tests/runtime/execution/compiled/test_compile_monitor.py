"""Where compiled programs are kept."""

import logging

import jax
import pytest

from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache

pytestmark = pytest.mark.usefixtures("keeps_cache_options")


def test_a_directory_is_made_and_used(tmp_path):
    use_persistent_cache(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert jax.config.values["jax_enable_compilation_cache"]
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "a" / "b")


def test_none_turns_it_off():
    use_persistent_cache(None)
    assert not jax.config.values["jax_enable_compilation_cache"]


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "home").write_text("in the way, as a read-only home would be")
    use_persistent_cache(tmp_path / "home" / "xla")
    assert not jax.config.values["jax_enable_compilation_cache"]
    # Other threads, of earlier tests too, may log what is no warning.
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
    assert str(tmp_path / "home") in caplog.text
    assert "--compilation-cache-dir" in caplog.text
