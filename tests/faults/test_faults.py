"""Every seeded fault still has its place in the tree: a fault that fits nowhere would say nothing about the tests."""

from pathlib import Path

import pytest

from tests.faults.fault import Fault
from tests.faults.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_tree(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert all((ROOT / tests).exists() for tests in fault.tests)
