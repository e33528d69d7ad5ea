"""Faults of kernel trials; see `faults`."""

from tests.faults.fault import Fault

_TRIALS = ("tests/runtime/core/trials/test_faulty_kernels.py",)

TRIAL_FAULTS = (
    Fault(
        "a verdict of another kind of device is taken",
        "runtime/core/trials/verdicts.py",
        "*dataclasses.astuple(platform), *tried",
        "*dataclasses.astuple(platform)[1:], *tried",
        _TRIALS,
    ),
    Fault(
        "the marker of a trial is not removed",
        "runtime/folders/trial_markers.py",
        "            path.unlink(missing_ok=True)\n",
        "            pass\n",
        ("tests/runtime/folders/test_trial_markers.py", *_TRIALS),
    ),
    Fault(
        "one backend is used for decode steps and another for prefill steps",
        "model/cache/paged_cache.py",
        "            sinks=sinks,\n            backend=kernels.attention,\n",
        '            sinks=sinks,\n            backend="reference" if self.metadata.kind == "decode" else '
        "kernels.attention,\n",
        _TRIALS,
    ),
    Fault(
        "a kernel that ended a process is tried again",
        "runtime/core/trials/kernel_trials.py",
        'found[name] = Verdict(name, "died", text=text)',
        'found.setdefault(name, Verdict(name, "ok", text=text))',
        _TRIALS,
    ),
    Fault(
        "rows that are not finite are compared with nothing",
        "runtime/core/trials/comparison.py",
        "    if broken.any():",
        "    if broken.all():",
        ("tests/runtime/core/trials/test_comparison.py",),
    ),
    Fault(
        "programs are compiled to plan memory before kernels are tried",
        "runtime/core/plan/engine_plan.py",
        "            if not before_compiling(chosen):",
        "            if not chosen:",
        _TRIALS,
    ),
    Fault(
        "a plan without a kernel that failed counts weights twice",
        "runtime/core/plan/engine_plan.py",
        "None if instead_of is None else instead_of.memory",
        "None",
        _TRIALS,
    ),
    Fault(
        "a kernel that leaves the device unusable is taken for one that failed",
        "runtime/core/trials/kernel_trials.py",
        'verdict.outcome == "failed" and not runner.computes()',
        'verdict.outcome == "died" and not runner.computes()',
        _TRIALS,
    ),
    Fault(
        "a first answer that differs is no problem for the doctor",
        "palladio/commands/doctor/doctor_kernels.py",
        'self.answer.get("outcome") == "differs"',
        'self.answer.get("outcome") == "wrong"',
        ("tests/palladio/commands/doctor/test_doctor_kernels.py",),
    ),
)
