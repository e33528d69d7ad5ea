"""Where compiled programs are kept: directories that cannot be written, and URLs."""

import logging
import sys
from pathlib import Path

import jax
import pytest

from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache

pytestmark = pytest.mark.usefixtures("keeps_cache_options")


def place() -> tuple[bool, str | None]:
    options = jax.config.values
    return options["jax_enable_compilation_cache"], options["jax_compilation_cache_dir"]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without what JAX says when another test of this process had a cache."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_url_goes_to_jax_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    epath = pytest.importorskip("etils.epath")
    monkeypatch.setattr(epath, "Path", lambda url: tmp_path / url.removeprefix("gs://"))
    use_persistent_cache("gs://bucket/x")
    assert (place(), warnings_in(caplog)) == ((True, "gs://bucket/x"), [])
    assert list((tmp_path / "bucket" / "x").iterdir()) == []


def test_a_bucket_that_can_be_read_alone_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    epath = pytest.importorskip("etils.epath")

    class ReadOnly(type(tmp_path)):
        def mkdir(self, *_: object, **__: object) -> None:
            raise PermissionError("403 Forbidden")

        def write_bytes(self, _: object) -> int:
            raise PermissionError("403 Forbidden")

    monkeypatch.setattr(epath, "Path", lambda _: ReadOnly(tmp_path))
    use_persistent_cache("gs://bucket/x")
    assert place() == (True, "gs://bucket/x")
    assert ["not kept" in line for line in warnings_in(caplog)] == [True]
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] > 1e6


def test_a_missing_package_is_one_line_and_no_cache(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "etils.epath", None)
    use_persistent_cache("gs://bucket/x")
    assert place()[0] is False
    (line,) = warnings_in(caplog)
    assert "needs the package etils" in line
    assert "cache-url" in line


def test_a_bucket_that_does_not_answer_is_one_line_and_no_cache(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    epath = pytest.importorskip("etils.epath")

    def lost(_: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(epath, "Path", lost)
    use_persistent_cache("gs://bucket/x")
    assert place()[0] is False
    (line,) = warnings_in(caplog)
    assert "gs://bucket/x: RuntimeError: no credentials" in line


def test_a_directory_that_cannot_be_made_is_one_line_and_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    use_persistent_cache(tmp_path / "file" / "x")
    assert place()[0] is False
    (line,) = warnings_in(caplog)
    assert "--compilation-cache-dir" in line


def test_a_directory_that_cannot_be_written_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    use_persistent_cache(tmp_path)
    assert place() == (True, str(tmp_path))
    (line,) = warnings_in(caplog)
    assert "No space left on device" in line
    jax.jit(lambda x: x + 11)(3.0)
    assert list(tmp_path.iterdir()) == [], "jax tries no program, and so warns of none"
    assert len(warnings_in(caplog)) == 1


def test_a_directory_that_cannot_be_read_is_one_line_and_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)  # root reads any directory
    use_persistent_cache(tmp_path)
    assert place()[0] is False
    (line,) = warnings_in(caplog)
    assert "Permission denied" in line
    assert jax.jit(lambda x: x + 12)(3.0) == 15.0


def test_a_damaged_program_is_compiled_again(tmp_path: Path) -> None:
    def add(x: float) -> float:
        return x + 13

    use_persistent_cache(tmp_path)
    assert jax.jit(add)(3.0) == 16.0
    kept = [file for file in tmp_path.rglob("*-cache") if file.is_file()]
    assert kept
    for file in kept:
        file.write_bytes(b"no program")
    jax.clear_caches()
    with pytest.warns(UserWarning, match="persistent compilation cache"):
        assert jax.jit(add)(3.0) == 16.0
