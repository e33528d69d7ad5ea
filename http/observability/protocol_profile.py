"""The body of /start_profile: SGLang's fields, each applied or refused with a reason."""

from typing import Annotated

from pydantic import Field

from palladio.http.observability.profile_folder import ProfileFolder
from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.messages.profile_options import MAX_STEPS, ProfileOptions


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
        fields = self.model_dump(exclude={"output_dir"})
        return ProfileOptions.of(fields, lambda: folder.place(self.output_dir))
