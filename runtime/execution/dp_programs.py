"""Programs of several groups of devices: each group computes the same function of its own part of everything.

With --dp-size G the devices are G groups, each with all of the weights, and with requests, pages and slots of its own.
One call of a program serves all of them in lockstep, so they run the same shapes. Nothing crosses the border between
two groups: what a group computes is what one engine on its devices would.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from palladio.model.sharding import DATA_AXIS, num_groups, num_shards


def over_groups(
    function: Callable[..., Any], mesh: Mesh, *, num_shared: int, num_state: int, results: tuple[bool, ...] | bool
) -> Callable[..., Any]:
    """The function of one group, as one of all groups; unchanged where there is but one.

    State is laid end to end along the first axis: [G·P, …]. What comes from the host and goes to it is stacked:
    [G, …].

    Args:
        function: its arguments are, in this order, what all groups have whole, state, and arrays of the host.
        num_shared: arguments of the first kind. num_state: of the second.
        results: of each part of what it returns, whether it goes to the host (else it is state); a bool: of all of it.
    """
    if num_groups(mesh) == 1:
        return function
    first_from_host = num_shared + num_state

    def of_one_group(*arguments: Any) -> Any:
        from_host = jax.tree.map(lambda array: array[0], arguments[first_from_host:])
        out = function(*arguments[:first_from_host], *from_host)
        if isinstance(results, bool):
            return _stacked(out) if results else out
        return tuple(_stacked(part) if goes else part for part, goes in zip(out, results, strict=True))

    def of_all(*arguments: Any) -> Any:
        whole, own = PartitionSpec(), PartitionSpec(DATA_AXIS)
        return jax.shard_map(
            of_one_group,
            mesh=mesh,
            in_specs=(whole,) * num_shared + (own,) * (len(arguments) - num_shared),
            out_specs=own,
            # The compiler goes on splitting over the tensor axis by itself. Where that is one device it has nothing to
            # split, and must not look for it: it can't see into kernels.
            axis_names={DATA_AXIS} if num_shards(mesh) > 1 else frozenset(mesh.axis_names),
            check_vma=False,  # a Pallas call does not say over which axes its result varies
        )(*arguments)

    return of_all


def _stacked(tree: Any) -> Any:
    return jax.tree.map(lambda array: array[None], tree)
