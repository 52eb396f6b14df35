"""The code that a function runs, for its code version: comments and docstrings apart, with what it uses of its own module."""

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from types import CodeType, FunctionType, ModuleType

from lakehouse.declare.secrets import Secret
from lakehouse.errors import DeclarationError

_DIGEST = "digest "
_VALUE_TYPES = frozenset(
    kind.__name__
    for kind in (
        Decimal,
        date,
        datetime,
        timedelta,
        dict,
        float,
        frozenset,
        int,
        list,
        range,
        set,
        str,
        tuple,
    )
)
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
    return [f"{name}={text}" for name, text in _constants(code).items()]


def written(code: Callable[..., object]) -> Mapping[str, str]:
    """What `dumped` and `constants` hold, by name, as it would be written: for people, and to be compared by another Python.

    A constant whose value does not stand in the source, such as a key from the environment, is a digest.
    """
    hidden = _hidden(code)
    constants = {
        name: digest(name, text) if name in hidden else text
        for name, text in _constants(code).items()
    }
    return {**_read(code)[1], **constants}


@cache
def _hidden(code: FunctionType) -> frozenset[str]:
    """The constants whose values do not stand in the source."""
    return frozenset(
        f"constant {name}"
        for each in _reached(code)
        for name, value in _globals(each)
        if _literal(value) is not None
        and not isinstance(value, Secret)
        and not _in_source(name, value, each.__module__)
    )


def digest(name: str, text: str) -> str:
    """Returns what stands for a constant's value on disk. It is slow to compute, so that a short value cannot be guessed.

    It has no key of its own: one that lies beside it protects nothing, and a fork would not have another.
    """
    if is_digest(text):
        return text
    return _DIGEST + _digested(name, text)


def is_digest(text: str) -> bool:
    """Whether a text of `written` stands for a value."""
    return text.startswith(_DIGEST)


@cache
def _digested(name: str, text: str) -> str:
    return hashlib.scrypt(text.encode(), salt=name.encode(), n=1 << 14, r=8, p=1, dklen=16).hex()


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
    dumps = tuple(map(ast.dump, trees.values()))
    _unname(trees[code])
    texts = {
        "function" if each is code else f"function {each.__name__}": ast.unparse(tree)
        for each, tree in trees.items()
    }
    return dumps, texts


@cache
def _constants(code: FunctionType) -> Mapping[str, str]:
    values = {
        name: _text(name, value, each.__module__)
        for each in _reached(code)
        for name, value in _globals(each)
        if not name.startswith("__")
    }
    return {f"constant {name}": text for name, text in sorted(values.items()) if text is not None}


def _in_source(name: str, value: object, module: str) -> bool:
    """Whether the value of a name stands in the module: a literal, or made of such values by types and operators."""
    made = _assignments(module).get(name)
    if made is None:
        return False
    try:
        return bool(ast.literal_eval(made) == value)  # which may have been set again since
    except (ValueError, TypeError, SyntaxError):
        scope = vars(sys.modules[module])
        names = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)} - _VALUE_TYPES
        return all(
            used != name and used in scope and _in_source(used, scope[used], module)
            for used in names
        )


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
