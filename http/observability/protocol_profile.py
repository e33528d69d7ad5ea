"""The body of /start_profile: SGLang's fields, each applied or refused with a reason."""

from typing import Annotated, Any

from pydantic import Field

from palladio.http.observability.profile_folder import ProfileFolder
from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.profile_options import MAX_STEPS, ProfileOptions

# What SGLang's profiler of torch has and XLA's has not: a value that asks for nothing passes.
REFUSED = {
    "profile_by_stage": "a trace holds prefill and decode; tell them apart by their programs",
    "profile_stages": "a trace holds prefill and decode; tell them apart by their programs",
    "record_shapes": "shapes are static: the names of the programs tell their buckets",
    "merge_profiles": "there is one engine process, and one trace",
    "profile_id": "name the folder with output_dir",
    "profile_prefix": "name the folder with output_dir",
}
ACTIVITIES = ("CPU", "GPU", "TPU")


class StartProfileRequest(WireModel):
    output_dir: str | None = None
    start_step: Annotated[int | None, Field(ge=0)] = None
    num_steps: Annotated[int | None, Field(ge=1, le=MAX_STEPS)] = None
    activities: Annotated[list[str], Field(fail_fast=True)] | None = None
    with_stack: bool | None = None
    host_tracer_level: Annotated[int | None, Field(ge=0, le=3)] = None
    python_tracer_level: Annotated[int | None, Field(ge=0, le=1)] = None
    profile_by_stage: bool | None = None
    profile_stages: Annotated[list[str], Field(fail_fast=True)] | None = None
    record_shapes: bool | None = None
    merge_profiles: bool | None = None
    profile_id: str | None = None
    profile_prefix: str | None = None

    def options(self, folder: ProfileFolder) -> ProfileOptions:
        """
        Args:
            folder: where it may be written.

        Raises:
            InvalidRequestError: a field asks for what XLA's profiler has not, or for a place elsewhere.
        """
        given: dict[str, Any] = self.model_dump(include=set(REFUSED))
        for name, reason in REFUSED.items():
            if given[name]:
                raise InvalidRequestError(f"{name} is not supported: {reason}", param=name)
        activities = [name.upper() for name in self.activities or ACTIVITIES]
        if not set(activities) <= set(ACTIVITIES):
            raise InvalidRequestError(
                f"activities may be CPU (the host) and GPU or TPU (the device), got {self.activities}",
                param="activities",
            )
        python = self.python_tracer_level
        host = 1 if self.host_tracer_level is None else self.host_tracer_level
        return ProfileOptions(
            folder.place(self.output_dir),
            start_step=self.start_step or 0,
            num_steps=self.num_steps,
            host_tracer_level=host if "CPU" in activities else 0,
            python_tracer_level=int(bool(self.with_stack)) if python is None else python,
            device_tracer_level=int(set(activities) != {"CPU"}),
        )
