"""Log lines of the serving process."""

import json
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from palladio.runtime.telemetry.logs import make_formatter

ROOT = Path(__file__).resolve().parents[2]


def test_our_lines_stay_as_they_are_beside_the_http_servers():
    code = """
        import logging, logging.config
        from palladio.http.settings.http_config import HttpConfig
        from palladio.http.settings.log_config import logging_config
        from palladio.runtime.telemetry.logs import configure_logging

        configure_logging("info")
        logging.config.dictConfig(logging_config(HttpConfig()))
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("palladio.anything").log(level, "to tell")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    stamp = r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
    lines = [re.sub(stamp, "| ", line) for line in result.stderr.splitlines()]
    assert lines == ["| to tell", "| WARNING: to tell", "| ERROR: to tell"]


def test_nobody_forges_a_line():
    record = logging.LogRecord("x", logging.ERROR, "", 0, "id %s failed", ("a\nb\r\x1b[2J\x85\u2028ü",), None)
    line = make_formatter("text").format(record)
    assert line.endswith(r"] ERROR: id a\nb\r\x1b[2J\x85\u2028ü failed")
    told = make_formatter("json").format(record)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028]", line + told)
    assert json.loads(told)["message"] == "id a\nb\r\x1b[2J\x85\u2028ü failed"


def test_tracebacks_keep_their_lines_and_nothing_else():
    try:
        raise ValueError("id \x1b[2J\r is taken")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broken", (), sys.exc_info())
    lines = make_formatter("text").format(record).split("\n")
    assert lines[0].endswith("ERROR: broken")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == r"ValueError: id \x1b[2J\r is taken"
