"""`palladio pull` from a small hub on this machine, and `palladio list` of what it left."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.__main__ import main
from palladio.commands.models import list_models
from palladio.flags.default_model import DEFAULT_MODEL_NAME
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.text.hub import hub_download
from tests.fake_hub import COMMIT, FakeHub, running_hub, use_hub
from tests.fake_index import CONTENT, named_model

ROOT = Path(__file__).resolve().parents[4]
MODEL = {
    path.name: path.read_bytes()
    for path in (ROOT / "palladio" / "default_checkpoint").iterdir()
    if path.suffix in (".json", ".jinja", ".safetensors")
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(hub_download, "_INTERVAL", 0.01)
    with running_hub() as found:
        use_hub(found, str(tmp_path / "cache"), monkeypatch)
        found.repositories = {"org/model": MODEL, "org/odd": {"config.json": b'{"architectures": ["Odd"]}'}}
        yield found


def test_sizes_come_before_the_download(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "org/model"]) == 0
    sizes, downloading, folder, serve = capsys.readouterr().out.splitlines()
    total = sum(map(len, MODEL.values())) / 1e6
    assert sizes == f"org/model: {len(MODEL)} files, {total:.1f} MB"
    assert downloading == f"Downloading {total:.1f} MB to {tmp_path / 'cache'}"
    assert (Path(folder) / "model.safetensors").is_file()
    assert serve == "Serve it: palladio serve org/model"
    assert main(["pull", "org/model"]) == 0
    assert f"{total:.1f} MB of it are here" in capsys.readouterr().out


def test_exit_codes_of_pull(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pull", "org/modle"]) == 2
    assert f"{hub.url} has no such repository" in capsys.readouterr().err
    assert main(["pull", "default"]) == 2
    assert "error: MODEL default is the embedded model, which is here" in capsys.readouterr().err
    room = namedtuple("room", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room(9, 0, 1000))
    assert main(["pull", "org/model"]) == 2
    assert f"error: {tmp_path / 'cache'} has room for 1.0 kB, and " in capsys.readouterr().err
    assert hub.fetched() == []


def test_list_says_what_can_be_served(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("org/model", "org/odd"):
        main(["pull", name])
    (tmp_path / "cache" / "models--org--model" / "blobs" / "x.incomplete").write_bytes(b"12345")
    (tmp_path / "cache" / "models--org--none" / "refs").mkdir(parents=True)
    capsys.readouterr()
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert "3 in the hub cache" in told
    assert "Interrupted downloads have left 5 B" in told
    assert main(["list", "--json"]) == 0
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert list(models) == [DEFAULT_MODEL_NAME, "smollm2", "org/model", "org/none", "org/odd"]
    assert models["smollm2"]["problem"] == "not downloaded: palladio pull smollm2"
    assert "smollm2 (SmolLM2-135M-Instruct, Apache-2.0) is not downloaded: palladio pull smollm2" in told
    assert models["org/model"]["size"] == sum(map(len, MODEL.values()))
    assert models["org/model"]["revision"] == f"main {COMMIT[:7]}"
    assert [models[name]["problem"] for name in (DEFAULT_MODEL_NAME, "org/model")] == [None, None]
    assert models["org/odd"]["problem"] == "weights are missing"
    assert models["org/none"]["problem"] == "nothing of it is complete"
    assert main(["list", "--servable", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_list_shows_a_short_name_whose_repository_is_there_in_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_models, "catalogue", lambda: (named_model(),))
    folder = tmp_path / f"models--{named_model().repository.replace('/', '--')}"
    folder.mkdir()
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    assert "tiny (Tiny, Apache-2.0) is not downloaded: palladio pull tiny" in capsys.readouterr().out
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_bytes(b"{}" * 50)
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(str(snapshot)) == 2, "by its short name, and as it is in the cache"
    assert shown.count(" 100 B ") == 2
    assert "1 in the hub cache" in shown


def test_list_shows_a_model_of_the_catalogue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_models, "catalogue", lambda: (named_model(),))
    file = named_model().file_in(tmp_path)
    file.parent.mkdir(parents=True)
    file.with_name("x.incomplete").write_bytes(b"12345")
    file.write_bytes(CONTENT)
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"tiny +300.0 kB +\S+ +Tiny, Apache-2.0 +ready to serve\n +.*tiny.gguf\n", told)
    assert f"Interrupted downloads have left 5 B: rm {tmp_path}/palladio/*/*.incomplete" in told
    assert main(["list", "--servable", "--json", "--download-dir", str(tmp_path)]) == 0
    assert [model["name"] for model in json.loads(capsys.readouterr().out)] == [DEFAULT_MODEL_NAME, "tiny"]


async def test_serving_a_hub_id_tells_of_its_download(hub: FakeHub) -> None:
    """/ready has it, and the bar of the start."""
    seen = []

    class Transport:
        shares_interpreter = False

        def send(self, message: object) -> None:
            pass

        def start(self, config: EngineConfig, on_message: object) -> None:
            started.append(config)

        async def stop(self, timeout: float) -> None:
            pass

    started = []
    engine = AsyncEngine(
        EngineConfig(source=ModelSource(model_path="org/model", skip_tokenizer_init=True)), Transport()
    )
    engine._display.update = seen.append
    await engine.start()
    await engine._launch_task
    assert Path(started[0].source.model_path).name == COMMIT
    assert engine.progress == seen[-1]
    await engine.shutdown()
    assert {progress.phase for progress in seen} == {"download"}
    assert seen[-1].done == seen[-1].total == sum(map(len, MODEL.values()))


@contextlib.contextmanager
def process(hub: FakeHub, cache: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which reads the environment."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "palladio", *words]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        hub.release.set()
        child.kill()
        child.communicate()


@pytest.mark.slow
def test_a_pull_goes_on_after_a_kill(tmp_path: Path) -> None:
    with running_hub() as hub:
        hub.repositories, hub.hold = {"org/model": MODEL}, "model.safetensors"
        with process(hub, tmp_path, "pull", "org/model") as child:
            assert hub.held.wait(60)
            deadline = time.monotonic() + 60
            while len(list(tmp_path.glob("models--*/snapshots/*/*"))) < len(MODEL) - 1:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            child.kill()
            child.wait()
        (left,) = tmp_path.glob("models--*/blobs/*.incomplete")
        os.utime(left, (0, 0))  # as a later download finds it
        hub.hold = None
        hub.requests.clear()
        with process(hub, tmp_path, "pull", "org/model") as again:
            assert again.wait(60) == 0
        assert hub.fetched() == ["model.safetensors"]
        assert list(tmp_path.glob("models--*/blobs/*.incomplete")) == []


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [(["pull", "org/model"], 130), (["serve", "org/model", "--port=0"], 0)])
def test_ctrl_c_ends_a_download_at_once(words: list[str], status: int, tmp_path: Path) -> None:
    with running_hub() as hub:
        hub.repositories, hub.hold = {"org/model": MODEL}, "model.safetensors"
        with process(hub, tmp_path, *words) as child:
            assert hub.held.wait(60)
            child.send_signal(signal.SIGINT)
            assert child.wait(10) == status
        assert list(tmp_path.glob("models--*/blobs/*.incomplete")) == []


@pytest.mark.slow
def test_serving_a_name_pulls_it_and_then_serves(tmp_path: Path) -> None:
    with running_hub() as hub:
        hub.repositories = {"org/model": MODEL}
        flags = ["--port=0", "--context-length=512", "--max-running-requests=1", "--log-level=info"]
        with process(hub, tmp_path, "serve", "org/model", *flags) as child:
            assert child.stderr is not None
            address = ""
            for line in child.stderr:
                address = line.partition("running on ")[2].split(" ")[0] or address
                if "fired up" in line:
                    break
            body = {"model": "org/model", "prompt": "Hi", "max_tokens": 2}
            request = urllib.request.Request(
                f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] <= 2
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 0
        assert sorted(hub.fetched()) == sorted(MODEL)
