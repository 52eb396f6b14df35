"""Random queries over a table of windows, some of which keep windows apart and some not, and what DuckDB makes of them."""

import re
from collections import Counter
from dataclasses import dataclass
from random import Random

import duckdb

_SOURCE = '(SELECT "window" AS {0}, k AS {1}, v AS {2} FROM clicks)'
_REFERENCE = "(SELECT k AS {0}, v AS {1} FROM refs)"
SPANS = [(f"2026-01-01 0{h}:00:00", f"2026-01-01 0{h + 1}:00:00") for h in range(3)]


@dataclass(frozen=True)
class Relation:
    """A query in parentheses and its columns by kind: w a window, s and e its start and end, k and v numbers."""

    sql: str
    columns: dict[str, str]

    def of(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.columns.items() if kind in kinds]


class Queries:
    """Makes queries, in DuckDB's SQL; `in_spark` writes them for Spark."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    def query(self) -> str:
        """A query whose result has a column of the name that windows get."""
        while True:
            made = self._relation(self._random.choice((1, 2, 2, 3)))
            others = ", ".join(made.of("k", "v"))
            window = self._window_of(made)
            if window and others:
                return f'SELECT {window} AS "window", {others} FROM {made.sql} AS t'

    def _window_of(self, made: Relation) -> str:
        if windows := made.of("w"):
            return self._random.choice(windows)
        if made.of("s") and made.of("e"):
            return f"span({self._random.choice(made.of('s'))}, {self._random.choice(made.of('e'))})"
        return ""

    def _name(self) -> str:
        self._number += 1
        return f"c{self._number}"

    def _relation(self, depth: int) -> Relation:
        if depth == 0:
            return self._leaf()
        kinds = (
            *(self._projected, self._filtered, self._grouped, self._grouped, self._ranked),
            *(self._joined, self._joined, self._joined, self._united, self._distinct, self._asking),
            *(self._asking, self._limited),
        )
        return self._random.choice(kinds)(depth - 1)

    def _leaf(self) -> Relation:
        if self._random.random() < 0.12:
            names = [self._name() for _ in range(2)]
            return Relation(_REFERENCE.format(*names), dict(zip(names, "kv", strict=True)))
        names = [self._name() for _ in range(3)]
        return Relation(_SOURCE.format(*names), dict(zip(names, "wkv", strict=True)))

    def _projected(self, depth: int) -> Relation:
        below, columns, chosen = self._relation(depth), {}, []
        for name, kind in below.columns.items():
            if kind == "w" and self._random.random() < 0.5:
                start, end = self._name(), self._name()
                chosen += [f'{name}."start" AS {start}', f'{name}."end" AS {end}']
                columns |= {start: "s", end: "e"}
                if self._random.random() < 0.5:
                    continue
            if kind in "kv" and self._random.random() < 0.2:
                continue
            alias = self._name()
            chosen.append(f"{name} AS {alias}")
            columns[alias] = kind
        if not chosen:
            return below
        return Relation(f"(SELECT {', '.join(chosen)} FROM {below.sql} AS t)", columns)

    def _filtered(self, depth: int) -> Relation:
        below = self._relation(depth)
        return self._where(below, self._condition(below, below, 0.3))

    def _where(self, below: Relation, condition: str) -> Relation:
        return Relation(f"(SELECT * FROM {below.sql} AS t WHERE {condition})", below.columns)

    def _condition(self, one: Relation, other: Relation, of_windows: float) -> str:
        """Something that holds of two relations' columns."""
        parts = []
        if self._random.random() < of_windows:
            for kind in self._random.choice((("w",), ("w",), ("w",), ("s",), ("e",), ("s", "e"))):
                if pair := self._pair(one, other, kind):
                    equal = self._random.choice(("=", "=", "=", "=", "IS NOT DISTINCT FROM"))
                    if self._random.random() < 0.1:
                        equal = self._random.choice(("<>", ">=", "<"))
                    parts.append(f"{pair[0]} {equal} {pair[1]}")
        if not parts or self._random.random() < 0.5:
            kind = self._random.choice("kv")
            pair = self._pair(one, other, kind)
            if pair and pair[0] != pair[1]:
                parts.append(f"{pair[0]} {self._random.choice(('=', '=', '<>', '<'))} {pair[1]}")
        if not parts:
            numbers = one.of("k", "v")
            parts.append(f"{self._random.choice(numbers)} > 0" if numbers else "true")
        together = " OR " if self._random.random() < 0.08 else " AND "
        return together.join(parts)

    def _pair(self, one: Relation, other: Relation, kind: str) -> tuple[str, str] | None:
        mine, theirs = (self._values(side, kind) for side in (one, other))
        return (self._random.choice(mine), self._random.choice(theirs)) if mine and theirs else None

    def _values(self, side: Relation, kind: str) -> list[str]:
        parts = {"s": "start", "e": "end"}
        found = side.of(kind)
        if kind in parts:
            found += [f'{name}."{parts[kind]}"' for name in side.of("w")]
        elif kind == "w" and side.of("s") and side.of("e"):
            found.append(f"span({side.of('s')[0]}, {side.of('e')[0]})")
        return found

    def _by(self, below: Relation) -> list[str]:
        numbers = below.of("k", "v")
        by = [each for each in numbers if self._random.random() < 0.4]
        spans = below.of("w", "s", "e")
        return [each for each in spans if self._random.random() < 0.8] + by

    def _grouped(self, depth: int) -> Relation:
        below = self._relation(depth)
        columns, chosen, by = {}, [], self._by(below)
        for name in by:
            alias = self._name()
            chosen.append(f"{name} AS {alias}")
            columns[alias] = below.columns[name]
        if below.of("w") and self._random.random() < 0.15:
            alias = self._name()
            chosen.append(f"max({self._random.choice(below.of('w'))}) AS {alias}")
            columns[alias] = "w"
        alias, numbers = self._name(), below.of("k", "v")
        counted = f"max({self._random.choice(numbers)})" if numbers else "count(*)"
        chosen.append(f"{self._random.choice((counted, 'count(*)'))} AS {alias}")
        columns[alias] = "v"
        grouped = f" GROUP BY {', '.join(by)}" if by else ""
        if by and self._random.random() < 0.1:
            grouped = f" GROUP BY ROLLUP ({', '.join(by)})"
        return Relation(f"(SELECT {', '.join(chosen)} FROM {below.sql} AS t{grouped})", columns)

    def _ranked(self, depth: int) -> Relation:
        below = self._relation(depth)
        by, alias, numbers = self._by(below), self._name(), below.of("k", "v")
        order = f"ORDER BY {self._random.choice(numbers)} DESC NULLS LAST" if numbers else ""
        over = f"OVER ({'PARTITION BY ' + ', '.join(by) if by else ''} {order})"
        called = self._random.choice(("rank()", "count(*)"))
        called = called if order else "count(*)"
        sql = f"(SELECT *, {called} {over} AS {alias} FROM {below.sql} AS t)"
        return Relation(sql, below.columns | {alias: "v"})

    def _joined(self, depth: int) -> Relation:
        left, right = self._relation(depth), self._relation(self._random.choice((0, depth)))
        how = self._random.choice(
            ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
        )
        condition = self._condition(left, right, 0.8)
        if how == "FULL JOIN" and not re.fullmatch(
            r"[^<>]*(?<![<>])=[^<>]*", condition.replace(" IS NOT DISTINCT FROM ", "<")
        ):
            how = "LEFT JOIN"
        both = left.columns | ({} if how in ("SEMI JOIN", "ANTI JOIN") else right.columns)
        if how == "JOIN" and self._random.random() < 0.3:
            return Relation(
                f"(SELECT * FROM {left.sql} AS l, {right.sql} AS r WHERE {condition})", both
            )
        sql = f"(SELECT * FROM {left.sql} AS l {how} {right.sql} AS r ON {condition})"
        made = Relation(sql, both)
        if how == "FULL JOIN" and left.of("w") and right.of("w"):
            alias = self._name()
            one, other = left.of("w")[0], right.of("w")[0]
            sql = f"(SELECT *, coalesce({one}, {other}) AS {alias} FROM {made.sql} AS t)"
            return Relation(sql, {alias: "w"} | both)
        return made

    def _united(self, depth: int) -> Relation:
        left, right = self._relation(depth), self._relation(self._random.choice((0, depth)))
        columns, mine, theirs = {}, [], []
        rest = dict(right.columns)
        for name, kind in left.columns.items():
            if match := next((other for other, its in rest.items() if its == kind), None):
                del rest[match]
                alias = self._name()
                columns[alias] = kind
                mine.append(f"{name} AS {alias}")
                theirs.append(f"{match} AS {alias}")
        if not mine:
            return left
        how = self._random.choice(("UNION ALL", "UNION", "INTERSECT", "EXCEPT"))
        parts = [
            f"SELECT {', '.join(chosen)} FROM {side.sql} AS t"
            for chosen, side in ((mine, left), (theirs, right))
        ]
        return Relation(f"({f' {how} '.join(parts)})", columns)

    def _distinct(self, depth: int) -> Relation:
        below = self._relation(depth)
        return Relation(f"(SELECT DISTINCT * FROM {below.sql} AS t)", below.columns)

    def _limited(self, depth: int) -> Relation:
        below = self._relation(depth)
        columns = below.of("k", "v", "s", "e")
        if not columns or below.of("w") or self._random.random() < 0.5:
            return self._grouped(depth)
        order = ", ".join(f"{each} NULLS LAST" for each in below.columns)
        return Relation(f"(SELECT * FROM {below.sql} AS t ORDER BY {order} LIMIT 2)", below.columns)

    def _asking(self, depth: int) -> Relation:
        below, asked = self._relation(depth), self._relation(self._random.choice((0, depth)))
        condition = self._condition(below, asked, 0.8)
        inner = f"{asked.sql} AS q WHERE {condition}"
        kinds = ["exists"] * 2 + (["in"] if asked.of("w") and below.of("w") else [])
        numbers = asked.of("k", "v")
        kinds += (
            ["scalar"] * 2
            if numbers and "=" in condition and "<" not in condition and " OR " not in condition
            else []
        )
        kind = self._random.choice(kinds)
        no = self._random.choice(("", "", "NOT "))
        if kind == "exists":
            return self._where(below, f"{no}EXISTS (SELECT 1 FROM {inner})")
        if kind == "in":
            one, other = self._random.choice(below.of("w")), self._random.choice(asked.of("w"))
            return self._where(below, f"{one} {no}IN (SELECT {other} FROM {asked.sql} AS q)")
        if self._random.random() < 0.5 or not below.of("v", "k"):
            alias = self._name()
            sql = f"(SELECT *, (SELECT max({self._random.choice(numbers)}) FROM {inner}) AS {alias} FROM {below.sql} AS t)"
            return Relation(sql, below.columns | {alias: "v"})
        mine = self._random.choice(below.of("v", "k"))
        return self._where(
            below, f"{mine} >= (SELECT max({self._random.choice(numbers)}) FROM {inner})"
        )


def in_spark(query: str) -> str:
    """The query as Spark writes it, its inputs in braces."""
    plain = re.sub(r"\b(clicks|refs)\b", r"{\1}", query.replace('"', "`"))
    plain = plain.replace("SEMI JOIN", "LEFT SEMI JOIN").replace("ANTI JOIN", "LEFT ANTI JOIN")
    plain = plain.replace("IS NOT DISTINCT FROM", "<=>")
    return re.sub(r"span\(([^,()]+), ([^,()]+)\)", r"named_struct('start', \1, 'end', \2)", plain)


class Truth:
    """Whether a query makes of several windows at once what it makes of each by itself, by DuckDB, on random rows."""

    def __init__(self, random: Random, *, trials: int = 16) -> None:
        self._random = random
        self._trials = trials
        self._db = duckdb.connect()
        self._db.execute("CREATE MACRO span(s, e) AS {'start': s, 'end': e}")

    def keeps_windows_apart(self, query: str) -> bool:
        return all(self._holds(query) for _ in range(self._trials))

    def _holds(self, query: str) -> bool:
        clicks = [
            (self._random.randrange(len(SPANS)), *self._numbers())
            for _ in range(self._random.randint(2, 7))
        ]
        refs = [self._numbers() for _ in range(self._random.randint(1, 3))]
        parts: Counter[tuple] = Counter()
        for number, (start, _) in enumerate(SPANS):
            rows = self._rows(query, [each for each in clicks if each[0] == number], refs)
            if any(row[0] is None or str(row[0]["start"]) != start for row in rows):
                return False
            parts.update(map(_hashable, rows))
        return parts == Counter(map(_hashable, self._rows(query, clicks, refs)))

    def _numbers(self) -> tuple[int | None, int | None]:
        return tuple(self._random.choices([None, 0, 1, 1, 2], k=2))

    def _rows(self, query: str, clicks: list[tuple], refs: list[tuple]) -> list[tuple]:
        spans = [f"span(TIMESTAMP '{start}', TIMESTAMP '{end}')" for start, end in SPANS]
        of_clicks = [f"({spans[w]}, {_number(k)}, {_number(v)})" for w, k, v in clicks]
        none = f'SELECT * FROM (VALUES ({spans[0]}, 1, 1)) AS t("window", k, v) WHERE false'
        some = f'SELECT * FROM (VALUES {", ".join(of_clicks)}) AS t("window", k, v)'
        of_refs = ", ".join(f"({_number(k)}, {_number(v)})" for k, v in refs)
        inputs = f"clicks AS ({some if clicks else none}), refs(k, v) AS (VALUES {of_refs})"
        return self._db.execute(f"WITH {inputs} {query}").fetchall()


def _number(value: int | None) -> str:
    return "NULL::INT" if value is None else str(value)


def _hashable(row: tuple) -> tuple:
    return tuple(tuple(each.values()) if isinstance(each, dict) else each for each in row)
