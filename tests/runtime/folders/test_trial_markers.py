"""Markers of trials: left by a process that ends in one, and by no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from palladio.runtime.folders.trial_markers import ProcessMarkers, left_markers, trial_marker

TRY = """
import os, sys
from pathlib import Path
from palladio.runtime.folders.trial_markers import trial_marker
with trial_marker(Path(sys.argv[1]), "key", "op/backend"):
    print("in it", flush=True)
    sys.stdin.read()
    os.abort()
"""


def test_a_trial_that_ends_leaves_nothing(tmp_path: Path) -> None:
    own = ProcessMarkers(tmp_path / "new", os.getpid())
    with trial_marker(tmp_path / "new", "key", "op/backend"):
        (marker,) = own.found()
        assert ProcessMarkers(tmp_path / "new", os.getpid()).found() == []  # a later process of this number
        assert marker.kernel == "op/backend"
        assert left_markers(tmp_path / "new", "key") == []
    with pytest.raises(KeyboardInterrupt), trial_marker(tmp_path / "new", "key", "op/backend"):
        raise KeyboardInterrupt
    assert list((tmp_path / "new").iterdir()) == []


def test_a_process_that_ends_in_a_trial_leaves_its_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRY, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        own = ProcessMarkers(tmp_path, child.pid)
        other = ProcessMarkers(tmp_path, child.pid + 1)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"in it\n"
        assert left_markers(tmp_path, "key") == []  # it goes on
        assert len(own.found()) == 1
    (left,) = left_markers(tmp_path, "key")
    assert left.kernel == "op/backend"
    assert left_markers(tmp_path, "other") == []
    other.remove()
    assert left_markers(tmp_path, "key") == [left]
    own.remove()
    assert left_markers(tmp_path, "key") == []


def test_a_process_of_another_host_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share a cache have processes of the same numbers."""
    own = ProcessMarkers(tmp_path, os.getpid())
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "other.host")
        with trial_marker(tmp_path, "key", "op/backend"):
            assert len(list(tmp_path.glob("key.other-host-*.running"))) == 1
            assert own.found() == []
