"""ModelControl: what may change of a model while it is served: whether it runs, its weights, and where they are."""

import logging
from pathlib import Path

from palladio.runtime.core.weight_loader import WeightLoader
from palladio.runtime.execution.model_runner import DeviceExecutor
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages import ControlReply
from palladio.runtime.interface.model_messages import (
    MemoryTag,
    ModelMessage,
    PauseMode,
    SetPause,
    SetReleased,
    UpdateWeights,
)
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.telemetry.logs import Activity

PAUSE_POLL = 0.05  # seconds between two looks at the deadlines of requests that wait for generation to go on

logger = logging.getLogger("palladio.engine")


class ModelControl:
    """Between two steps. Nothing is under way on the device when it is asked.

    Args:
        activity: is told while weights are loaded.
        has_followers: other hosts run the model too.

    Attributes:
        is_stopped: no step may be planned. Each step looks at it.
    """

    def __init__(
        self,
        loader: WeightLoader,
        executor: DeviceExecutor,
        scheduler: DataParallelScheduler,
        activity: Activity,
        *,
        has_followers: bool,
    ) -> None:
        self._loader = loader
        self._executor = executor
        self._scheduler = scheduler
        self._activity = activity
        self._has_followers = has_followers
        self._pause: PauseMode | None = None
        self._released: frozenset[MemoryTag] = frozenset()
        self._path: Path | None = None  # of the present weights; None: those of the start
        self.is_stopped = False

    def answer(self, message: ModelMessage) -> ControlReply:
        """Does what it says, or, if the reply is not `ok`, nothing. The reply's `count`: requests that had begun."""
        num_running = self._scheduler.num_running
        try:
            match message:
                case SetPause():
                    self._set_pause(message.mode)
                case UpdateWeights():
                    self._update(Path(message.path))
                case SetReleased():
                    self._set_released(frozenset(message.tags))
        except InvalidRequestError as error:
            return ControlReply(message.call_id, ok=False, message=str(error))
        finally:
            self.is_stopped = self._pause is not None or bool(self._released)
        return ControlReply(message.call_id, ok=True, count=num_running)

    def _set_pause(self, mode: PauseMode | None) -> None:
        self._pause = mode
        if mode == "retract":
            self._scheduler.retract_all()

    def _update(self, path: Path) -> None:
        self._refuse_followers("update weights")
        with self._activity.loading_weights(), self._executor.programs.built.expecting_compiles():
            if "weights" not in self._released:
                self._loader.check_room()
            weights = self._loader.load(path)
            self._scheduler.start_over()
            self._executor.use_weights(weights)
        self._path, self._released = path, self._released - {"weights"}
        logger.info("The weights are now those in %s; the prefix cache is empty", path)

    def _set_released(self, tags: frozenset[MemoryTag]) -> None:
        self._refuse_followers("release or resume memory")
        if tags - self._released and (self._scheduler.num_running or not self._is_quiet):
            raise InvalidRequestError(
                "memory can only be released while no request runs: wait for the requests' end, or call "
                '/pause_generation with mode "abort" or "retract" first'
            )
        with self._activity.loading_weights(), self._executor.programs.built.expecting_compiles():
            if "weights" in tags - self._released:
                self._executor.use_weights(())
            if "kv_cache" in tags - self._released:
                self._scheduler.flush()
                self._executor.release_cache()
            self._released |= tags
            if "weights" in self._released - tags:
                weights = self._loader.load_first() if self._path is None else self._loader.load(self._path)
                self._executor.use_weights(weights)
                self._released -= {"weights"}
            if "kv_cache" in self._released - tags:
                self._executor.restore_cache()
                self._released -= {"kv_cache"}
        logger.info("Released device memory: %s", ", ".join(sorted(self._released)) or "none")

    @property
    def _is_quiet(self) -> bool:
        return self.is_stopped or not self._scheduler.has_requests

    def _refuse_followers(self, action: str) -> None:
        if self._has_followers:
            raise InvalidRequestError(
                f"an engine over several hosts (--nnodes) cannot {action}: the other hosts would keep theirs. Restart "
                "the hosts with the new weights, or serve the model from one host"
            )
