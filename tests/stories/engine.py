"""How many stories are told, by which seed: Hypothesis draws them, and looks for a smaller one when one fails."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis import strategies as st

Told = TypeVar("Told")


def tell(
    play: Callable[[Told], Counter[str]],
    stories: st.SearchStrategy[Told],
    *,
    count: int,
    by_seed: int,
    examples: Iterable[Told] = (),
    first: bool = True,
) -> Counter[str]:
    """Plays the `examples`, then `count` stories drawn by that seed; in how many of them what occurred, and how many there were.

    The first story that Hypothesis draws is the same by every seed, the nastiest: without `first` it is left out. Fails
    with the smallest story found that fails.
    """
    occurred: Counter[str] = Counter()
    told = 0

    @seed(by_seed)
    @settings(max_examples=count + (not first), database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.explicit, Phase.generate, Phase.shrink])  # fmt: skip
    @given(story=stories)
    def each(story: Told) -> None:
        nonlocal told
        told += 1
        if first or told > 1:
            occurred.update(play(story) | Counter(stories=1))

    for story in examples:
        each = example(story=story)(each)
    each()
    return occurred
