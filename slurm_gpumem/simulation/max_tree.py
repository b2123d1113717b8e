"""A tree of maxima over numbered places: the first place with at least some value, in logarithmic time."""

from __future__ import annotations

from typing import List, Optional, Sequence


class MaxTree:
    """Values by place; -1 hides a place from every search."""

    def __init__(self, values: Sequence[int]) -> None:
        self.places = len(values)
        self._leaves = 1
        while self._leaves < self.places:
            self._leaves *= 2
        self._tree: List[int] = [-1] * (2 * self._leaves)
        self._tree[self._leaves : self._leaves + self.places] = values
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node], self._tree[2 * node + 1])

    def __getitem__(self, place: int) -> int:
        return self._tree[self._leaves + place]

    def __setitem__(self, place: int, value: int) -> None:
        tree = self._tree
        node = self._leaves + place
        tree[node] = value
        node //= 2
        while node:
            left, right = tree[2 * node], tree[2 * node + 1]
            larger = left if left > right else right
            if tree[node] == larger:
                return
            tree[node] = larger
            node //= 2

    @property
    def largest(self) -> int:
        """The largest value."""
        return self._tree[1]

    def first(self, least: int, start: int = 0) -> Optional[int]:
        """The first place from `start` on whose value is at least `least`; None where there is none."""
        tree = self._tree
        if start >= self.places or tree[1] < least:
            return None
        node = self._leaves + start
        while tree[node] < least:
            # Up while this is a right child, then on to the neighbour at the right.
            while node & 1:
                node //= 2
                if not node:
                    return None
            node += 1
            if not node & (node - 1):
                return None
        while node < self._leaves:
            node *= 2
            if tree[node] < least:
                node += 1
        return node - self._leaves
