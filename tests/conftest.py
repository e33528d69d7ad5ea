"""Before jax is imported: tests compile thousands of small programs once and run each for microseconds."""

import contextlib
import fcntl
import gc
import importlib.metadata
import os
import random
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import properties, work_order

# XLA's own passes, which decide what is computed, stay. Left out are LLVM's over the machine code, and the emitters of
# fused loops by way of MLIR: the older emitters of the same loops need a third of the CPU time. JAX 0.11 has none.
FAST_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if importlib.metadata.version("jaxlib") < "0.11":
    FAST_COMPILE += " --xla_cpu_use_fusion_emitters=false"

# scripts/test-plain: nothing of this file that is there to be quick, as in the processes of users.
IS_PLAIN = bool(os.environ.get("PALLADIO_TESTS_PLAIN"))

if not IS_PLAIN:
    if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILE}".strip()

    # Where in our source each operation of a program comes from: it takes a twentieth of tracing and compiling, and
    # only profiles are interested, which have the scopes' names in any case.
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

    # What clients of HTTP trust, which none of them needs: reading all authorities of the world takes 20 ms a client,
    # and there are thousands. Tests of certificates name their own.
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "authority.pem")

    gc.disable()  # while modules are imported and tests are collected: of a million objects, next to none are garbage

properties.register()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The long run prints its seed, the same in all workers; the process that starts these records durations."""
    if str(config.getoption("--hypothesis-profile")).startswith("long") and not config.getoption("--hypothesis-seed"):
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(work_order.Recorder(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> work_order.WorkOrder | None:
    return work_order.WorkOrder(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """One worker at a time imports a module: in a fresh clone the first compiles it and its imports for all."""
    with contextlib.ExitStack() as stack:
        if isinstance(collector, pytest.Module | pytest.Directory):  # a folder's conftest.py, too
            descriptor = os.open(collector.path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """Modules of jax, torch and all tests stay: garbage collection would walk their million objects again and again."""
    if IS_PLAIN:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 20)  # a tenth as often as by default, and of everything a twentieth
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if properties.is_long():
        terminalreporter.write_line(
            f"--hypothesis-seed={config.getoption('--hypothesis-seed')} draws these examples again"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.get_closest_marker("hypothesis") is not None:
        again = properties.command(item.nodeid, item.config.getoption("--hypothesis-seed"))
        report.sections.append(("The smallest such example", again))
    return report
