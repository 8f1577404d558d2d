"""Which beginnings of prompts each member probably has in its cache.

Theory. A prompt is a chain of blocks, and a block's key depends on all before it (`wire.prompt` makes them), so equal
keys mean equal beginnings. Each member has one list of keys, least recently used first, as long as its real KV cache;
a prompt is entered when it is sent, because whoever comes next will find it there. All lists share one map from a key
to the set of members that have it, as bits of a number.

A chain is entered from its end to its beginning, so a block is always used later than those that build on it, and is
forgotten after them. Hence the blocks that a member has of a prompt are always its first ones, and the depth to which
each member has it is found by halving instead of walking.

A beginning that many share (a system prompt) must not tie everybody to the member that got it first. Each request
that branches off it pays `RENT` tokens; when the payments cover reading it once, it counts as if every member had it,
until a member that has not got it reads it. So spreading costs at most `RENT` tokens a request, a short prompt is
everywhere after a few requests, and a long document goes to another member only for the load's sake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

RENT: Final = 512.0
"""Tokens a request spends on spreading the beginning that it shares with others."""
UNKNOWN_TOKENS: Final = 400_000
"""What a member's cache is taken to hold before it says. Too big costs little, too small much."""
LARGEST_BLOCKS: Final = 1_000_000
"""Blocks over all members, whatever they say of their caches: about 400 bytes each."""


class PrefixIndex:
    """One pool's."""

    __slots__ = ("_bits", "_credit", "_holders", "_largest", "_limits", "_lists", "_paid", "block_tokens")

    def __init__(self, block_tokens: int, *, largest: int = LARGEST_BLOCKS) -> None:
        self.block_tokens = block_tokens
        self._largest = largest
        self._holders: dict[int, int] = {}
        self._lists: dict[str, OrderedDict[int, None]] = {}
        self._bits: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._credit: dict[int, float] = {}
        self._paid: set[int] = set()
        """Whose credit covers reading everything up to there once."""

    @property
    def entries(self) -> int:
        """Keys in all lists."""
        return sum(map(len, self._lists.values()))

    @property
    def distinct(self) -> int:
        """Different keys in all lists; each beginning that is paid for is one of them."""
        return len(self._holders)

    def bit(self, member: str) -> int:
        """The member's place in `depths`; it has one from now on."""
        found = self._bits.get(member)
        if found is None:
            taken = 0
            for bit in self._bits.values():
                taken |= bit
            found = ~taken & (taken + 1)  # the lowest that is free
            self._bits[member] = found
            self._lists[member] = OrderedDict()
            part = max(1, self._largest // len(self._lists))
            for name, limit in self._limits.items():
                self._limits[name] = min(limit, part)
                self._shrink(name, self._limits[name])
        return found

    def keep(self, members: Sequence[str]) -> None:
        """Forget who is not one of these, when many others are remembered."""
        if len(self._lists) > 2 * len(members) + 16:
            for gone in self._lists.keys() - set(members):
                self.forget(gone)

    def forget(self, member: str) -> None:
        """The member's cache is gone, or the member is."""
        for key in self._lists.get(member, ()):
            self._drop(key, self._bits[member])
        self._lists.pop(member, None)
        self._bits.pop(member, None)
        self._limits.pop(member, None)

    def depths(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """How far each member has this prompt: (blocks, members who have at least so many), growing blocks.

        Members are bits of a number, see `bit`; each step's members are a true part of the step's before. Empty:
        nobody has any.
        """
        get = self._holders.get
        last = len(blocks)
        if not last or not (mask := get(blocks[0], 0)):
            return []
        steps = []
        depth = 1
        while True:
            low, high = depth, last
            while low < high:
                middle = (low + high + 1) >> 1
                if get(blocks[middle - 1], 0) == mask:
                    low = middle
                else:
                    high = middle - 1
            steps.append((low, mask))
            depth = low + 1
            if low == last or not (mask := get(blocks[depth - 1], 0)):
                return steps

    def common(self, blocks: Sequence[int], known: int) -> int:
        """Of the first `known` blocks, those that count as if every member had them."""
        paid = self._paid
        if paid and not paid.isdisjoint(blocks[:known]):
            return next(depth for depth in range(known, 0, -1) if blocks[depth - 1] in paid)
        return 0

    def enter(self, member: str, blocks: Sequence[int], cache_tokens: int | None) -> int:
        """A prompt is sent to the member, whose cache holds so many tokens. How many blocks it had of it already."""
        self.bit(member)
        limit = self._resize(member, cache_tokens)
        steps = self.depths(blocks)
        bit = self._bits[member]
        had = max((depth for depth, mask in steps if mask & bit), default=0)
        if steps:
            self._pay(blocks, steps[-1][0], had)
        recent, holders = self._lists[member], self._holders
        kept = min(len(blocks), limit)
        for place in range(kept - 1, -1, -1):
            key = blocks[place]
            if place < had:
                recent.move_to_end(key)
            else:
                recent[key] = None
                holders[key] = holders.get(key, 0) | bit
        self._shrink(member, limit)
        return had

    def _pay(self, blocks: Sequence[int], known: int, had: int) -> None:
        credit = self._credit
        shared = self.common(blocks, known)
        if shared > had:  # this one reads what was paid for
            for depth in range(had + 1, known + 1):
                key = blocks[depth - 1]
                if key in credit:
                    credit[key] = max(0.0, credit[key] - depth * self.block_tokens)
                    self._paid.discard(key)
        branch, price = blocks[known - 1], float(known * self.block_tokens)
        credit[branch] = min(credit.get(branch, 0.0) + RENT, price)
        if credit[branch] == price:
            self._paid.add(branch)

    def _resize(self, member: str, cache_tokens: int | None) -> int:
        wanted = (UNKNOWN_TOKENS if cache_tokens is None else cache_tokens) // self.block_tokens
        self._limits[member] = limit = max(1, min(wanted, self._largest // len(self._lists)))
        return limit

    def _shrink(self, member: str, limit: int) -> None:
        recent, bit = self._lists[member], self._bits[member]
        while len(recent) > limit:
            key, _ = recent.popitem(last=False)
            self._drop(key, bit)

    def _drop(self, key: int, bit: int) -> None:
        left = self._holders[key] & ~bit
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]
            self._credit.pop(key, None)
            self._paid.discard(key)
