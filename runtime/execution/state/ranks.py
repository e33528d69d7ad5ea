"""Data-parallel ranks on the device: the one place where what belongs to each of several ranks becomes one array.

With --dp-size G the devices are G ranks, each with all of the weights, and with requests, pages and slots of its own.
One call of a program serves all of them in lockstep, so they run the same shapes. Nothing crosses the border between
two ranks: what a rank computes is what one engine on its devices would. So programs are written for one rank. With
--enable-dp-attention each rank has some of the experts only, and in sparse layers rows go to them and back.

State is laid end to end along the first axis: [G·P, …]. What comes from the host and goes to it is stacked: [G, …].
With one rank there is neither: arrays are as the program sees them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from palladio.model.base.sharding import RANK_AXES, RANK_AXIS, ShardingRules, num_ranks, num_shards, only_axes

HostArray = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class RankAxis:
    """The ranks that the devices are.

    Attributes:
        mesh: the devices. num_ranks: that they are divided into.
    """

    mesh: Mesh
    num_ranks: int

    @classmethod
    def of(cls, mesh: Mesh) -> "RankAxis":
        return cls(mesh, num_ranks(mesh))

    @property
    def state(self) -> NamedSharding:
        """Of what each rank has its part of, along the first axis, and each device of a rank all of that."""
        return ShardingRules().sharding(self.mesh, ("ranks",))

    @property
    def exchanged(self) -> NamedSharding:
        """Of what goes to and comes from the host: by rank; where ranks are on different hosts every device has all of
        it, because a host neither gives nor reads a part of an array."""
        is_whole = self.num_ranks == 1 or self.mesh.is_multi_process
        return ShardingRules().sharding(self.mesh, () if is_whole else ("ranks",))

    def stack(self, arrays: Sequence[HostArray]) -> HostArray:
        """Arrays of the host, one of each rank, as what programs take."""
        return arrays[0] if self.num_ranks == 1 else np.stack(arrays)

    def repeat(self, array: HostArray) -> HostArray:
        """The same array for each rank."""
        return self.stack([array] * self.num_ranks)

    def only(self, rank: int, array: HostArray) -> HostArray:
        """An array of one rank; the others are given zeros, which mean the scratch slot and the scratch page."""
        if self.num_ranks == 1:
            return array
        stacked = np.zeros((self.num_ranks, *array.shape), array.dtype)
        stacked[rank] = array
        return stacked

    def take(self, rank: int, tree: Any) -> Any:
        """One rank's part of what programs give to the host."""
        return tree if self.num_ranks == 1 else jax.tree.map(lambda array: np.asarray(array)[rank], tree)

    def from_host(self, array: jax.ShapeDtypeStruct) -> Any:
        """What `stack` makes of such arrays. Any: it stands where a jax.Array will."""
        shape = array.shape if self.num_ranks == 1 else (self.num_ranks, *array.shape)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=self.exchanged)

    def over(self, function: Callable[..., Any], *, whole: tuple[Any, ...], num_state: int) -> Callable[..., Any]:
        """A program's function of one rank, as one of all ranks; unchanged where there is but one.

        Args:
            function: its arguments are, in this order, weights, state, and arrays of the host. It returns new state,
                other state, and what goes to the host.
            whole: shapes of the arguments of the first kind, which are the same for all ranks, or split over those
                that have experts in common. num_state: arguments of the second.
        """
        if self.num_ranks == 1:
            return function
        first_from_host = len(whole) + num_state
        of_weights = jax.tree.map(lambda leaf: only_axes(leaf.sharding.spec, (RANK_AXIS,)), whole)

        def of_one_rank(*arguments: Any) -> Any:
            from_host = jax.tree.map(lambda array: array[0], arguments[first_from_host:])
            new, kept, given = function(*arguments[:first_from_host], *from_host)
            return new, kept, jax.tree.map(lambda array: array[None], given)

        def of_all(*arguments: Any) -> Any:
            own = PartitionSpec(RANK_AXES)
            return jax.shard_map(
                of_one_rank,
                mesh=self.mesh,
                in_specs=(*of_weights, *(own,) * (len(arguments) - len(whole))),
                out_specs=own,
                # The compiler goes on splitting over the tensor axis by itself. Where that is one device it has nothing
                # to split, and must not look for it: it can't see into kernels.
                axis_names=set(RANK_AXES) if num_shards(self.mesh) > 1 else frozenset(self.mesh.axis_names),
                check_vma=False,  # a Pallas call does not say over which axes its result varies
            )(*arguments)

        return of_all
