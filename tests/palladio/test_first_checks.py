"""What `palladio serve` looks at before it prints or starts anything."""

import socket
from pathlib import Path

import pytest

from palladio.server.launch import launch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chat-template", "/nonexistent.jinja"], "--chat-template"),
        (["--api-key-file", "/nonexistent"], "--api-key-file"),
        (["--ssl-certfile", "/nonexistent", "--ssl-keyfile", "/nonexistent"], "--ssl-certfile"),
        (["--model-path", "EMPTY"], "no config.json in"),
        (["--model-path", "/nonexistent"], "/nonexistent"),
        (["--port", "TAKEN"], "Address already in use"),
    ],
)
def test_a_wrong_flag_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {"EMPTY": str(tmp_path), "TAKEN": str(taken.getsockname()[1])}
        argv = ["--port", "0", *(places.get(word, word) for word in words)]
        assert launch(argv, {"PALLADIO_DATA_DIR": str(tmp_path / "data")}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
