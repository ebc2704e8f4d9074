"""The random numbers of the scripts, in plain Python."""

M1, M2 = 4294967087, 4294944443


class Mrg32k3a:
    """The random numbers of lua/include/random.lua, in whole numbers."""

    def __init__(self, seeds):
        self.a, self.b = list(seeds[:3]), list(seeds[3:])

    def next(self):
        a = (1403580 * self.a[1] - 810728 * self.a[0]) % M1
        b = (527612 * self.b[2] - 1370589 * self.b[0]) % M2
        self.a, self.b = [*self.a[1:], a], [*self.b[1:], b]
        return (a - b) % M1

    def below(self, n):
        """A whole number from 0 to n - 1: what would favour the first ones is drawn again."""
        while (x := self.next()) >= M1 - M1 % n:
            pass
        return x % n

    def different(self, n, size):
        """n different numbers below `size`: the first places of a shuffle."""
        places = list(range(size))
        for i in range(n):
            j = i + self.below(size - i)
            places[i], places[j] = places[j], places[i]
        return places[:n]
