"""Waits before something that failed is tried again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first` to `longest` seconds."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row, at least one."""
        return min(self.first * 2 ** min(failures - 1, 20), self.longest)
