"""Token trees: several guesses for the next tokens, checked in one forward (SpecInfer, Miao et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from webkv.errors import CacheError

MAX_TREE_SIZE = 256
"""Most uncommitted nodes of one sequence, as in TVM."""


@dataclass(frozen=True)
class TokenTree:
    """The nodes appended after the first `base` tokens of a sequence, not committed yet.

    Node k is in slot `base + k`; `parents[k]` is an earlier node or -1 for a root; `depths[k]` its distance
    from the root, so that its position is `base + depths[k]`.
    """

    base: int
    parents: tuple[int, ...]
    depths: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.parents)

    def extended(self, parents: Sequence[int], seq: int) -> TokenTree:
        """This tree with more nodes; their parents may be any earlier node.  Raises `CacheError`."""
        size = self.size + len(parents)
        if size > MAX_TREE_SIZE:
            raise CacheError(f"token tree of sequence {seq} has {size} nodes, at most {MAX_TREE_SIZE}")
        depths = list(self.depths)
        for node, parent in enumerate(parents, self.size):
            if not -1 <= parent < node:
                raise CacheError(
                    f"tree_parents of sequence {seq}: node {node} has parent {parent}, "
                    f"expected -1 or an earlier node"
                )
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return TokenTree(self.base, (*self.parents, *map(int, parents)), tuple(depths))

    def order(self) -> np.ndarray:
        """(first, end) of every node in a pre-order walk, int32 (size, 2).

        Node i may see node j iff `first[j] <= first[i] < end[j]`: j is i or one of its ancestors.
        """
        sizes = [1] * self.size
        for node in range(self.size - 1, -1, -1):
            if self.parents[node] >= 0:
                sizes[self.parents[node]] += sizes[node]
        made = np.empty((self.size, 2), np.int32)
        # Where the next child of each node starts; the last entry, index -1, is for roots.
        following = [0] * (self.size + 1)
        for node, parent in enumerate(self.parents):
            first = following[parent]
            following[parent] = first + sizes[node]
            following[node] = first + 1
            made[node] = first, first + sizes[node]
        return made

    def path(self, leaf: int) -> list[int]:
        """Nodes from the root to `leaf`; none for -1."""
        nodes: list[int] = []
        while leaf >= 0:
            nodes.append(leaf)
            leaf = self.parents[leaf]
        return nodes[::-1]
