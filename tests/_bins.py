"""Draws by priority in plain Python: the weights in bins, as lua/include/ has them."""

import math
from dataclasses import dataclass, field

from tests._mrg import M1

FIT, STEPS, SIZE = 1024 / 1025, [2 ** (i / 4) for i in range(4)], 8  # lua/include/bucket.lua, block.lua


@dataclass
class Block:
    """The weights of 8 records, and their sum as it was counted; its bin, or None."""

    weights: list = field(default_factory=lambda: [0.0] * SIZE)
    sum: float = 0.0
    k: int | None = None


def finish(k):
    """The end of a bin."""
    return math.ldexp(STEPS[k % 4], k // 4) / FIT


@dataclass
class Row:
    """A bin as a draw sees it."""

    k: int
    blocks: list
    size: float = 1.0


@dataclass
class Bins:
    """The weights of lua/include/bucket.lua: number -> block, bin -> numbers of blocks in their places."""

    alpha: float
    eps: float
    blocks: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    waiting: dict = field(default_factory=dict)  # numbers of blocks that `settle` looks at, in this order
    opened: set = field(default_factory=set)

    def weight(self, priority):
        return max(2.0**-1022, min(2.0**1023, (priority + self.eps) ** self.alpha)) / 64

    def touch(self, index):
        """The block that holds an index, which `settle` looks at next."""
        self.opened.add(index // SIZE)
        self.waiting[index // SIZE] = True
        return self.blocks.setdefault(index // SIZE, Block())

    def weigh(self, index, weight):
        """This is the record's weight now."""
        block = self.touch(index)
        block.sum = block.sum - block.weights[index % SIZE] + weight
        block.weights[index % SIZE] = weight

    def enter(self, index, priority):
        self.weigh(index, self.weight(priority))

    def reweigh(self, index, priority):
        """By another alpha."""
        if self.blocks[index // SIZE].weights[index % SIZE] != self.weight(priority):
            self.enter(index, priority)

    def leave(self, index):
        self.weigh(index, 0.0)

    def change(self, index, priority):
        """Of a record that can be drawn before and after: at once where its block stays in its bin."""
        block, weight = self.blocks[index // SIZE], self.weight(priority)
        now = block.sum - block.weights[index % SIZE] + weight
        if index // SIZE in self.opened or not finish(block.k) / 2 < now <= finish(block.k):
            self.weigh(index, weight)
        else:
            block.sum, block.weights[index % SIZE] = now, weight

    def count(self):
        """Records that weigh something."""
        return sum(weight > 0 for block in self.blocks.values() for weight in block.weights)

    def probabilities(self, indices):
        """With which one draw gives each."""
        total = sum(weight for block in self.blocks.values() for weight in block.weights)
        return [self.blocks[index // SIZE].weights[index % SIZE] / total for index in indices]

    def settle(self):
        """Each block that was touched goes where it belongs."""
        for number in self.waiting:
            block = self.blocks[number]
            block.sum = sum(block.weights)
            if block.k is not None and finish(block.k) / 2 < block.sum <= finish(block.k):
                continue
            if block.k is not None:
                self._stand_up(number, block)
            if any(block.weights):
                block.k = self.bin(block.sum)
                self.rows.setdefault(block.k, []).append(number)
        self.waiting.clear()
        self.opened.clear()

    def _stand_up(self, number, block):
        leave_row(self.rows[block.k], self.rows[block.k].index(number))
        if not self.rows[block.k]:
            del self.rows[block.k]
        block.k = None

    def bin(self, total):
        """The one with the least end that is not below a sum."""
        part, e = math.frexp(total * FIT)
        return 4 * (e - 1) + next((i for i in range(4) if part * 2 <= STEPS[i]), 4)

    def draw(self, n, random, distinct):
        self.settle()
        rows = measured([Row(k, list(blocks)) for k, blocks in self.rows.items()])
        seen = {number: (list(block.weights), block.sum) for number, block in self.blocks.items()}
        drawn = []
        while len(drawn) < n:
            row, place, up = fall(rows, (random.next() + random.next() / M1) / M1)
            number = row.blocks[place]
            weights, total = seen[number]
            if up < total:
                spot = spot_of(weights, up)
                drawn.append(number * SIZE + spot)
                if distinct:
                    weights[spot] = 0.0
                    seen[number] = weights, sum(weights)
                    self._move(rows, row, place, seen[number][1])
        return drawn

    def _move(self, rows, row, place, total):
        if total > finish(row.k) / 2:
            return
        number = row.blocks[place]
        leave_row(row.blocks, place)
        if total > 0:
            to = next((other for other in rows if other.k == self.bin(total)), None)
            if to is None:
                to = Row(self.bin(total), [])
                rows.append(to)
            to.blocks.append(number)
        measured(rows)


def leave_row(row, place):
    """The last one has the place now."""
    last = row.pop()
    if place < len(row):
        row[place] = last


def measured(rows):
    """Those that hold somebody, largest first, with how much of a draw each place is."""
    rows[:] = sorted((row for row in rows if row.blocks), key=lambda row: -row.k)
    for row in rows:
        row.size = 2.0 ** ((row.k - rows[0].k) / 4)
    return rows


def fall(rows, part):
    """Where a number from 0 to 1 falls: a bin, a place there, how far up to the bin's end."""
    total = 0.0
    for row in rows:
        total += len(row.blocks) * row.size
    at = part * total
    for row in rows[:-1]:
        if at < len(row.blocks) * row.size:
            break
        at -= len(row.blocks) * row.size
    else:
        row = rows[-1]
    place = min(math.floor(at / row.size), len(row.blocks) - 1)
    return row, place, (at / row.size - place) * finish(row.k)


def spot_of(weights, at):
    """The spot that a part of the sum falls on."""
    for spot, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return spot
    return max(spot for spot, weight in enumerate(weights) if weight > 0)
