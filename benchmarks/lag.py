"""How far something is behind: seconds of each of what was sent, and what the job took for it."""

from dataclasses import dataclass
from statistics import quantiles


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds `of` each after the warm-up; the cores that the job kept busy meanwhile."""

    name: str
    of: str
    delays: tuple[float, ...]
    cpu: float

    @property
    def p50(self) -> float:
        return self._share(50)

    @property
    def p95(self) -> float:
        return self._share(95)

    @property
    def worst(self) -> float:
        return max(self.delays)

    def _share(self, percent: int) -> float:
        return quantiles(self.delays, n=100, method="inclusive")[percent - 1]
