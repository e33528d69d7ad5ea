"""A server's command line and environment together, as far as the model's folder."""

import json
import logging
from pathlib import Path

import pytest

from palladio.flags.server_args import ServerArgs
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.servable_config import glance_at
from palladio.server.launch import read_command

NO_PICTURES = ["--limit-mm-per-prompt", '{"image": 0, "video": {"count": 0}}']


class Reached(Exception):
    """The check after all others: the command is right."""


def reach(_: ServerArgs) -> None:
    raise Reached


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A model's folder, whose config.json has the test's parameter."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", **request.param}))
    return str(tmp_path)


@pytest.mark.parametrize("folder", [{"vision_config": {}}], indirect=True)
def test_pictures_of_a_model_that_reads_them_are_refused_by_the_flag(folder: str) -> None:
    for flag in ("--enable-multimodal", "--multimodal"):
        with pytest.raises(ConfigError, match=f"^{flag}: .*vision_config"):
            read_command([folder, flag], {}, reach)
    with pytest.raises(ConfigError, match="--limit-mm-per-prompt"):
        read_command([folder, "--limit-mm-per-prompt", '{"image": 1}'], {}, reach)
    for flags in ([], ["--language-only"], ["--no-enable-multimodal"], NO_PICTURES):
        with pytest.raises(Reached):
            read_command([folder, *flags], {}, reach)


@pytest.mark.parametrize("folder", [{}], indirect=True)
def test_the_flags_of_pictures_change_nothing_for_a_text_model(folder: str) -> None:
    for flags in (["--enable-multimodal"], ["--multimodal"], ["--language-only"], NO_PICTURES):
        with pytest.raises(Reached):
            read_command([folder, *flags], {}, reach)


@pytest.mark.parametrize("folder", [{}], indirect=True)
def test_flags_and_variables_of_other_servers_are_one_line_each_in_the_log(
    folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palladio.server.launch.configure_logging", lambda *_: None)
    caplog.set_level(logging.INFO)
    environment = {"VLLM_API_KEY": "s3cret", "JAX_COMPILATION_CACHE_DIR": "/a", "MODEL_IMPL_TYPE": "vllm"}
    args = read_command([folder, "--moe-backend", "fused", "--gpu-memory-utilization", "0.8"], environment)
    assert (args.http.api_key, args.execution.compilation_cache_dir) == ("s3cret", "/a")
    lines = [line for line in caplog.messages if not line.startswith("server_args=")]
    for name in (*environment, "--moe-backend", "--gpu-memory-utilization"):
        assert sum(line.startswith(name) for line in lines) == 1, name
    assert len(lines) == 5
    assert "s3cret" not in caplog.text


def test_an_error_that_comes_after_the_flags_are_read_names_the_flag_as_typed() -> None:
    with pytest.raises(ConfigError, match="--max-model-len"):
        read_command(["/none", "--max-model-len", "0"], {}, reach)


@pytest.mark.parametrize("folder", [{}], indirect=True)
def test_an_error_that_comes_with_the_model_names_the_flag_as_typed(folder: str) -> None:
    def check(args: ServerArgs) -> None:
        glance_at(Path(args.source.model_path), args.source.json_model_override_args)

    with pytest.raises(ConfigError, match=r"--json-model-override-args.*--hf-overrides"):
        read_command([folder, "--hf-overrides", "{"], {}, check)
