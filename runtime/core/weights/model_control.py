"""ModelControl: what may change of a model while it is served: whether it runs, its weights, and where they are."""

import logging
from collections.abc import Callable

from palladio.runtime.core.weights.model_memory import ModelMemory, Order
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.calls import ControlReply
from palladio.runtime.interface.messages.model_messages import (
    MemoryTag,
    ModelMessage,
    PauseMode,
    SetPause,
    SetReleased,
    UpdateWeights,
)
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.telemetry.activity import Activity

PAUSE_POLL = 0.05  # seconds between two looks at the deadlines of requests that wait for generation to go on

logger = logging.getLogger("palladio.engine")


class ModelControl:
    """Between two steps. Nothing is under way on the device when it is asked.

    Args:
        activity: is told while weights are loaded.
        memory: of this host.
        tell: the other hosts, of each order that `memory` is about to get.

    Attributes:
        is_stopped: no step may be planned. Each step looks at it.
    """

    def __init__(
        self,
        memory: ModelMemory,
        scheduler: EngineScheduler,
        activity: Activity,
        tell: Callable[[Order, str], None],
    ) -> None:
        self._memory = memory
        self._scheduler = scheduler
        self._activity = activity
        self._tell = tell
        self._pause: PauseMode | None = None
        self._released: frozenset[MemoryTag] = frozenset()
        self._path = ""  # of the present weights; "": those of the start
        self.is_stopped = False

    def answer(self, message: ModelMessage) -> ControlReply:
        """Does what it says, or, if the reply is not `ok`, nothing. The reply's `count`: requests that had begun."""
        num_running = self._scheduler.num_running
        try:
            match message:
                case SetPause():
                    self._set_pause(message.mode)
                case UpdateWeights():
                    self._update(message.path)
                case SetReleased():
                    self._set_released(frozenset(message.tags))
        except InvalidRequestError as error:
            return ControlReply(message.call_id, ok=False, message=str(error), param=error.param)
        finally:
            self.is_stopped = self._pause is not None or bool(self._released)
        return ControlReply(message.call_id, ok=True, count=num_running)

    def _set_pause(self, mode: PauseMode | None) -> None:
        self._pause = mode
        if mode == "retract":
            self._scheduler.retract_all()

    def _update(self, path: str) -> None:
        with self._activity.loading_weights():
            self._order("load", path)
        self._scheduler.start_over()
        self._path, self._released = path, self._released - {"weights"}
        logger.info("Updated the weights from %s and cleared the prefix cache", path)

    def _set_released(self, tags: frozenset[MemoryTag]) -> None:
        if tags - self._released and (self._scheduler.num_running or not self._is_quiet):
            raise InvalidRequestError(
                "memory can only be released while no request runs: wait for the requests' end, or call "
                '/pause_generation with mode "abort" or "retract" first'
            )
        if "weights" in tags - self._released:
            self._order("release_weights")
        if "kv_cache" in tags - self._released:
            self._scheduler.flush()
            self._order("release_cache")
        self._released |= tags
        if "weights" in self._released - tags:
            with self._activity.loading_weights():
                self._order("load", self._path)
            self._released -= {"weights"}
        if "kv_cache" in self._released - tags:
            self._order("restore_cache")
            self._released -= {"kv_cache"}
        logger.info("Released device memory: %s", ", ".join(sorted(self._released)) or "none")

    def _order(self, order: Order, path: str = "") -> None:
        self._tell(order, path)
        self._memory.obey(order, path)

    @property
    def _is_quiet(self) -> bool:
        return self.is_stopped or not self._scheduler.has_requests
