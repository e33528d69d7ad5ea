"""Faults of commands and of what watches the server; see `faults`."""

from tests.faults.blob_faults import BLOB_FAULTS
from tests.faults.command_faults import COMMAND_FAULTS
from tests.faults.dashboard_faults import DASHBOARD_FAULTS
from tests.faults.database_faults import DATABASE_FAULTS
from tests.faults.front_faults import FRONT_FAULTS
from tests.faults.page_faults import PAGE_FAULTS
from tests.faults.pooling_faults import POOLING_FAULTS
from tests.faults.ray_faults import RAY_FAULTS
from tests.faults.router_faults import ROUTER_FAULTS
from tests.faults.thought_faults import THOUGHT_FAULTS
from tests.faults.timeline_faults import TIMELINE_FAULTS

FEATURE_FAULTS = (
    *BLOB_FAULTS,
    *COMMAND_FAULTS,
    *DASHBOARD_FAULTS,
    *DATABASE_FAULTS,
    *FRONT_FAULTS,
    *PAGE_FAULTS,
    *POOLING_FAULTS,
    *RAY_FAULTS,
    *ROUTER_FAULTS,
    *THOUGHT_FAULTS,
    *TIMELINE_FAULTS,
)
