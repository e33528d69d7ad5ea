"""`palladio eval --tasks …`: lm-eval's tasks, where lm-eval is installed."""

import argparse
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Final

from palladio.commands.eval.engine_scores import running_scores
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.errors import ConfigError

_UNREADABLE: Final = ("samples", "config", "configs", "pretty_env_info")  # of the results: large, or not JSON
TASK_FLAGS: Final = ("num_fewshot", "limit", "apply_chat_template", "include_path", "json")


def add_task_flags(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_argument_group("of --tasks")
    tasks.add_argument(
        "--num-fewshot", metavar="N", type=int, help="examples before each question (default: the task's)"
    )
    tasks.add_argument("--limit", metavar="N", type=float, help="questions of each task; under 1: a share of them")
    tasks.add_argument("--apply-chat-template", action="store_true", help="ask in the model's chat format")
    tasks.add_argument("--include-path", metavar="DIR", help="a folder of tasks of your own")
    tasks.add_argument("--json", metavar="FILE", type=Path, help="write the results to this file")


def run_tasks(engine: AsyncEngine, args: argparse.Namespace) -> int:
    """Prints lm-eval's table; returns the exit code.

    Raises:
        ConfigError: lm-eval is not installed, has no such task, or a flag is wrong. EngineDeadError.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("--tasks needs lm-eval: pip install lm-eval")
    tasks: Any = importlib.import_module("lm_eval.tasks")
    manager = tasks.TaskManager(include_path=args.include_path)
    names = [name for name in args.tasks.split(",") if name]
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown or not names:
        missing = ", ".join(unknown) or "such task"
        raise ConfigError(f"--tasks: lm-eval has no {missing}; `lm-eval ls tasks` lists them")
    adapter: Any = importlib.import_module("palladio.commands.eval.lm_eval_model")
    lm_eval: Any = importlib.import_module("lm_eval")
    with running_scores(engine) as scores:
        results = lm_eval.simple_evaluate(
            model=adapter.PalladioLM(scores, engine.config.source.model_path),
            tasks=names,
            num_fewshot=args.num_fewshot,
            limit=args.limit,
            apply_chat_template=args.apply_chat_template,
            task_manager=manager,
            log_samples=False,
        )
    for name, found in sorted(results["results"].items()):
        for metric, value in sorted(found.items()):
            if isinstance(value, float) and "_stderr" not in metric:
                error = found.get(metric.replace(",", "_stderr,"))
                spread = f" ± {error:.4f}" if isinstance(error, float) else ""
                print(f"{name} {metric.partition(',')[0]} {value:.4f}{spread}")
    if args.json is not None:
        kept = {name: value for name, value in results.items() if name not in _UNREADABLE}
        args.json.write_text(json.dumps(kept, indent=2, default=str) + "\n", encoding="utf-8")
    return 0
