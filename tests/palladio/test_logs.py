"""Log lines of the serving process."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_our_lines_stay_as_they_are_beside_the_http_servers():
    code = """
        import logging, logging.config
        from palladio.http.config import HttpConfig
        from palladio.http.log_config import logging_config
        from palladio.runtime.logs import configure_logging

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
