"""The automaton of a pattern, which finds the rows of a match. It is pure: it knows neither Spark nor time.

A partial match holds the rows that its steps have taken, and the steps that may take the next one.
Each row is offered to each of these, in the order of the steps. A step that takes it makes a longer
partial match. The shorter one goes on without that step, so one beginning may give several matches,
each once.
"""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from lakehouse.transform.functions.pattern_steps import Condition, Step
from lakehouse.transform.functions.process import Row


class Partial(TypedDict):
    """A match that is under way, of plain values, as all of a key's state. It is never changed."""

    taken: tuple[tuple[Row, ...], ...]  # the rows of each step
    step: int  # the last one that took a row, -1 before the first
    last: int  # the number of that row
    waits: tuple[int, ...]  # the steps that may take the next row; behind the last one, the end


def order(partial: Partial) -> tuple[int, ...]:
    """Returns the sort key of matches with one beginning and one end: fewer rows first, then more rows of earlier steps."""
    counts = [len(rows) for rows in partial["taken"]]
    return sum(counts), *(-count for count in counts)


class Automaton:
    """Extends partial matches by the rows of a key, in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = [step for step in steps if step.kind != "not_followed_by"]
        self._index = {step.name: n for n, step in enumerate(self.steps)}
        self._end = len(self.steps)
        # what must not come before the step, or before the end
        self._absent: dict[int, Condition] = {}
        for n, step in enumerate(steps):
            if step.kind == "not_followed_by":
                self._absent[n - len(self._absent)] = step.condition
        self._start = Partial(taken=((),) * self._end, step=-1, last=0, waits=tuple(self._from(0)))

    @property
    def waits_for_time(self) -> bool:
        """True if a match may be certain only when the pattern's time is over."""
        ends = (n for n, step in enumerate(self.steps) if self._end in self._from(n + 1))
        return self._end in self._absent or any(self.steps[n].is_greedy for n in ends)

    def begun(self, row: Row, number: int) -> tuple[list[Partial], list[Partial]]:
        """Returns the partial matches that begin with a row, and the matches."""
        longer, _ = self._offered(self._start, row, number, {})
        going: list[Partial] = []
        complete: list[Partial] = []
        for match in longer:
            self._place(match, going, complete)
        return going, sorted(complete, key=order)

    def after(
        self, partials: Sequence[Partial], row: Row, number: int, outcomes: dict[Condition, bool]
    ) -> tuple[list[Partial], list[Partial]]:
        """Returns partial matches that go on after a row, and matches. `outcomes` has conditions that are the same for all."""
        going: list[Partial] = []
        complete: list[Partial] = []
        for partial in partials:
            longer, waits = self._offered(partial, row, number, outcomes)
            if len(waits) == len(partial["waits"]):
                going.append(partial)
            elif waits:
                longer.append({**partial, "waits": waits})
            for match in longer:
                self._place(match, going, complete)
        return going, sorted(complete, key=order)

    def at_the_end(self, partials: Sequence[Partial]) -> list[Partial]:
        """Returns the partial matches that are matches if no further row comes."""
        return sorted((p for p in partials if self._end in p["waits"]), key=order)

    def rows(self, partial: Partial) -> dict[str, Row | tuple[Row, ...] | None]:
        """Returns the rows by the name of their step."""
        return {step.name: self._rows(partial, n) for n, step in enumerate(self.steps)}

    def _rows(self, partial: Partial, n: int) -> Row | tuple[Row, ...] | None:
        rows = partial["taken"][n]
        if self.steps[n].repeats:
            return rows
        return rows[0] if rows else None

    def _offered(
        self, partial: Partial, row: Row, number: int, outcomes: dict[Condition, bool]
    ) -> tuple[list[Partial], tuple[int, ...]]:
        """Returns the partial matches that take a row, and the steps that the one without it still waits for."""
        longer: list[Partial] = []
        left: list[int] = []
        for n in partial["waits"]:
            steps = range(partial["step"] + 1, n + 1) if self._absent else ()
            forbidden = [self._absent[m] for m in steps if m in self._absent]
            if any(self._holds(condition, partial, row, outcomes) for condition in forbidden):
                continue
            if n == self._end:
                left.append(n)
                continue
            step = self.steps[n]
            if step.stop and self._holds(step.stop, partial, row, outcomes):
                continue
            if self._holds(step.condition, partial, row, outcomes):
                longer.append(self._with(partial, n, row, number))
                if step.is_greedy:
                    break
            elif not (
                step.is_consecutive if n == partial["step"] else step.kind == "directly_followed_by"
            ):
                left.append(n)
        return longer, tuple(left)

    def _place(self, partial: Partial, going: list[Partial], complete: list[Partial]) -> None:
        """Adds a partial match to those that are complete, those that go on, or both: a match may become longer."""
        *others, last = partial["waits"] or (-1,)
        is_at_end = last == self._end and last not in self._absent
        if is_at_end and not any(self.steps[n].is_greedy for n in others):  # whatever comes
            complete.append(partial)
            partial = {**partial, "waits": partial["waits"][:-1]}
        if partial["waits"]:
            going.append(partial)

    def _holds(
        self, condition: Condition, partial: Partial, row: Row, outcomes: dict[Condition, bool]
    ) -> bool:
        if condition.steps:
            rows = {name: self._rows(partial, self._index[name]) for name in condition.steps}
            return bool(condition.holds(row, **rows))
        if condition not in outcomes:  # it is the same for all partial matches
            outcomes[condition] = bool(condition.holds(row))
        return outcomes[condition]

    def _with(self, partial: Partial, n: int, row: Row, number: int) -> Partial:
        rows = (*partial["taken"][n], row)
        step = self.steps[n]
        again = (n,) if step.most is None or len(rows) < step.most else ()
        later = tuple(self._from(n + 1)) if len(rows) >= step.least else ()
        rows_taken = (*partial["taken"][:n], rows, *partial["taken"][n + 1 :])
        return Partial(taken=rows_taken, step=n, last=number, waits=again + later)

    def _from(self, n: int) -> Iterator[int]:
        """Yields the step, and those that may come instead, because all before them are optional."""
        for m in range(n, self._end + 1):
            yield m
            if m < self._end and not self.steps[m].is_optional:
                return
