"""Who owns which page of the pool, as text and as code.

Layers are in groups (`PageGroups`), each with block tables of its own, and all draw on one pool. Every page number has
one owner, in one column of one table:

    the free pages         PageAllocator
    the prefix tree        what has been shared. In layers that keep all tokens: of every key of every node. In a group
                           with a window: where there is no hole. A running request locks its node (`Request.node`),
                           hence the pages of all layers that keep all tokens up to there, and holds those pages of each
                           windowed group that its next token still sees (`HeldWindow.shared`)
    a running request      what it has not shared: `Request.pages` from `num_tree_pages` on and `HeldWindow.own`; and
                           pages of tokens that the tree has as well (`duplicates`), until the steps that write to them
                           are dispatched
    no owner               the scratch page

Slots of snapshots have owners too: free ones and those of nodes are the tree's (`TreeSnapshots`), others are of running
requests, of whose states a step makes a copy that no lookup finds yet (`StateSnapshots.taken`).

`duplicates` aside, a request's pages of one table are, column after column: given back (windowed groups only: no token
sees them any more), in the tree, its own.
"""

from collections.abc import Collection, Sequence

import numpy as np

from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.page_groups import PageGroups
from palladio.runtime.scheduling.state.request import Request

SCRATCH_PAGE = 0  # padding writes go here; it is never allocated


def check_owners(
    num_pages: int,
    free: Sequence[int],
    tree: RadixCache,
    groups: PageGroups,
    running: Collection[Request],
    taken: Sequence[int],
) -> None:
    """
    Args:
        num_pages: of the pool. free: those without an owner.
        taken: slots of snapshots that are not in the tree.

    Raises:
        AssertionError: a page has no owner, or several; the message says which.
    """
    owned = [SCRATCH_PAGE, *free, *tree.pages()]
    for request in running:
        owned += _own_pages(request, groups)
        _check_columns(request, groups)
    num_owners = np.bincount(np.array(owned), minlength=num_pages)
    wrong = np.flatnonzero(num_owners != 1)
    assert wrong.size == 0, f"page {wrong[0]} has {num_owners[wrong[0]]} owners; {wrong.size} pages are wrong"
    held = [page for request in running for window in request.windows for page in window.shared]
    tree.check_integrity([request.node for request in running if request.node is not None], held, taken)


def _own_pages(request: Request, groups: PageGroups) -> list[int]:
    own = list(request.duplicates)
    if groups.keeps_all:
        own += request.pages[request.num_tree_pages :]
    for held in request.windows:
        own += held.own_numbers()
    return own


def _check_columns(request: Request, groups: PageGroups) -> None:
    name = request.given.request_id
    needed = -(-request.num_computed // groups.page_size)
    assert len(request.pages) >= needed, f"{name} owns too few pages"
    path = [] if request.node is None else request.node.path_pages()
    assert len(path) == request.num_tree_pages, f"{name} holds another node than it should"
    own = set(request.duplicates)
    differing = {page for page, cached in zip(request.pages, path, strict=False) if page != cached}
    assert differing == own, f"{name}: pages {differing ^ own} are neither shared nor its own"
    assert len(request.windows) == len(groups.windows), f"{name} lacks a group"
    for held in request.windows:
        assert held.start <= held.group.first_needed(request.num_computed), f"{name} gave a page back too early"
        assert held.start + held.num_pages == len(request.pages), f"{name} has lost a page of a windowed group"
        assert len(held.shared) == max(0, request.num_tree_pages - held.start), f"{name} shares too much or too little"
