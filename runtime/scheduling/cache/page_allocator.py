"""PageAllocator: which KV pages are free."""


class PageAllocator:
    """Free pages 1 … num_pages-1. Page 0 is the scratch page.

    Attributes:
        num_pages: pages on the device, the scratch page included.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, "one scratch page and at least one real one"
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))  # a stack: recently freed pages are warm in caches

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Pages that requests can own: all but the scratch page."""
        return self.num_pages - 1

    @property
    def free_pages(self) -> tuple[int, ...]:
        return tuple(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages off the free stack; the caller checks `num_free` first."""
        assert count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def free(self, pages: list[int]) -> None:
        """Gives pages back. The list must not be used afterwards."""
        self._free.extend(pages)
