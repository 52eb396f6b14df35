"""The code that a function runs, for its code version: comments and docstrings apart, with what it uses of its own module."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from types import CodeType, FunctionType, ModuleType

from lakehouse.errors import DeclarationError

_VALUES = (str, bytes, int, float, Decimal, date, timedelta)  # a bool is an int, a datetime a date


@cache
def dumped(code: FunctionType) -> tuple[str, ...]:
    """The syntax trees of a function and of the functions and classes of the same module in it, as text.

    As they were when this was first asked, which the catalog does: a file that is edited beside a
    running job is not what the job runs. And never again: CPython 3.11 and 3.12 fail now and then
    when two threads make trees (its issue 106905). Raises DeclarationError if there is no file.
    """
    return _read(code)[0]


def constants(code: Callable[..., object]) -> list[str]:
    """The constants of the same module in it, such as a condition written as text, or a pattern."""
    return [
        f"{name}={text}" for name, text in _read(code)[1].items() if name.startswith("constant ")
    ]


def written(code: Callable[..., object]) -> Mapping[str, str]:
    """What `dumped` and `constants` hold, by name, as it would be written: for people, and to be compared by another Python."""
    return _read(code)[1]


def same(one: str, other: str) -> bool:
    """Whether two texts of `written` are the same code, though two versions of Python may have written them differently."""
    if one == other:
        return True
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:  # a function of nothing but a docstring
        return False


@cache
def _read(code: FunctionType) -> tuple[tuple[str, ...], Mapping[str, str]]:
    try:
        trees = {each: _tree(each) for each in _reached(code)}
    except OSError as err:
        raise DeclarationError(
            f"table={code.__name__}: its code cannot be read ({err}), and the code version is computed from it; declare the "
            "table in a module file"
        ) from err
    values = {
        name: _text(name, value, each.__module__)
        for each in trees
        for name, value in _globals(each)
        if not name.startswith("__")
    }
    named = {f"constant {name}": text for name, text in sorted(values.items()) if text is not None}
    dumps = tuple(map(ast.dump, trees.values()))
    _unname(trees[code])
    texts = {
        "function" if each is code else f"function {each.__name__}": ast.unparse(tree)
        for each, tree in trees.items()
    }
    return dumps, texts | named


def _unname(tree: ast.AST) -> None:
    """Leaves out of a table's function what is the table's, its name, and the types, which say nothing of what it does."""
    if isinstance(tree, ast.FunctionDef):
        tree.name, tree.returns = "table", None
        for each in tree.args.args:
            each.annotation = None


def _reached(code: FunctionType | type) -> list[FunctionType | type]:
    """The code, and the functions and classes of the same module that it uses, directly or through others."""
    reached = [code]
    for each in reached:
        reached += [used for used in _used(each) if used not in reached]
    return reached


def _tree(code: FunctionType | type) -> ast.AST:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def _used(code: FunctionType | type) -> list[FunctionType | type]:
    """The functions and classes of the same module that the code names.

    Of what a decorator wrapped, what was written.
    """
    values = [inspect.unwrap(value) if callable(value) else value for _, value in _globals(code)]
    return [
        each
        for each in values
        if isinstance(each, FunctionType | type) and each.__module__ == code.__module__
    ]


def _globals(code: FunctionType | type) -> list[tuple[str, object]]:
    """What the code names of its module, in the order of the names, and what the values made there name, such as a pattern."""
    functions = (
        [code]
        if isinstance(code, FunctionType)
        else [f for f in vars(code).values() if isinstance(f, FunctionType)]
    )
    names = [(name, f.__globals__) for f in functions for name in _names(f.__code__)]
    values: dict[str, object] = {}
    for name, scope in names:
        if name not in values:
            values[name] = scope.get(name)
            made = _made(name, values[name], code.__module__)
            names += (
                [(n.id, scope) for n in ast.walk(made) if isinstance(n, ast.Name)] if made else []
            )
    return [(name, values[name]) for name in sorted(values) if values[name] is not None]


def _text(name: str, value: object, module: str) -> str | None:
    made = _made(name, value, module)
    return ast.unparse(made) if made else _literal(value)


def _made(name: str, value: object, module: str) -> ast.expr | None:
    """How a module makes what is more than a value, such as a pattern.

    None of what is written as it is, has its own code, or is imported.
    """
    own = isinstance(value, FunctionType | type | ModuleType)
    return None if own or _literal(value) is not None else _assignments(module).get(name)


@cache
def _assignments(module: str) -> Mapping[str, ast.expr]:
    """What each name at the top of a module is set to, there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # typed at a prompt: the functions are refused for that
        return {}
    assignments: dict[str, ast.expr] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr):
            assignments |= {each.id: value for each in targets if isinstance(each, ast.Name)}
    return assignments


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, and the functions written inside it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _literal(value: object) -> str | None:
    """The value as it would be written, the same in every process.

    None for what is more than a value.
    """
    if value is None or isinstance(value, _VALUES):
        return repr(value)
    if isinstance(value, dict):
        parts = [part for pair in value.items() for part in map(_literal, pair)]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(map(_literal, value))
    else:
        return None
    literals = [part for part in parts if part is not None]
    if len(literals) < len(parts):
        return None
    ordered = sorted(literals) if isinstance(value, set | frozenset) else literals
    return f"{type(value).__name__}({', '.join(ordered)})"
