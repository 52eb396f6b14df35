"""The code that a function runs, for its code version: without comments and docstrings, with what it uses of its module."""

import ast
import hashlib
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from types import CodeType, FunctionType, ModuleType

from lakehouse.declare.secrets import Secret
from lakehouse.errors import DeclarationError

_DIGEST = "digest "
_NUMBERS_AND_TIMES = (int, float, Decimal, date, datetime, timedelta)
_COLLECTIONS = (dict, frozenset, list, range, set, str, tuple)
_VALUE_TYPES = frozenset(kind.__name__ for kind in (*_NUMBERS_AND_TIMES, *_COLLECTIONS))
_VALUES = (str, bytes, int, float, Decimal, date, timedelta)  # a bool is an int, a datetime a date

# two threads that parse at once make Python 3.11 fail: "AST constructor recursion depth mismatch"
_parsing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Code:
    """The code that a function runs: its own, and the functions, classes and constants of its module that it uses."""

    trees: tuple[str, ...]  # syntax trees as text
    sources: Mapping[str, str]  # by name, for people, and for another Python to compare
    constants: Mapping[str, str]  # such as a condition written as text, or a pattern
    hidden: frozenset[str]  # constants that are not in the source, such as a key of the environment

    @property
    def parts(self) -> list[str]:
        """The trees and the constants, by which a change is noticed."""
        return [*self.trees, *(f"{name}={text}" for name, text in self.constants.items())]


def _parsed(source: str) -> ast.Module:
    with _parsing:
        return ast.parse(source)


@cache
def code_of(function: FunctionType) -> Code:
    """Returns the code of a function.

    The catalog asks first, and later calls return the same: a file that is edited beside a running job is not
    what the job runs. CPython 3.11 and 3.12 also fail now and then when two threads make trees (its issue
    106905). Raises DeclarationError if there is no file.
    """
    reached = _reached(function)
    try:
        trees = {used: _tree(used) for used in reached}
    except OSError as err:
        raise DeclarationError(
            f"table={function.__name__}: its code cannot be read ({err}), which decides its version; declare it in a module file"
        ) from err
    dumps = tuple(map(ast.dump, trees.values()))
    own = trees[function]
    if isinstance(own, ast.FunctionDef):  # its name is the table's, and its types decide nothing
        own.name, own.returns = "table", None
        for argument in own.args.args:
            argument.annotation = None
    sources = {
        "function" if used is function else f"function {used.__name__}": ast.unparse(tree)
        for used, tree in trees.items()
    }
    values = {name: value for used in reached for name, value in _globals(used)}
    module = function.__module__
    texts = {name: _text(name, values[name], module) for name in sorted(values) if name[:2] != "__"}
    constants = {f"constant {name}": text for name, text in texts.items() if text is not None}
    hidden = frozenset(
        f"constant {name}"
        for name, value in values.items()
        if _literal(value) is not None
        and not isinstance(value, Secret)
        and not _in_source(name, value, module)
    )
    return Code(dumps, sources, constants, hidden)


def written(function: Callable[..., object]) -> Mapping[str, str]:
    """Returns the sources and constants of a function by name. A hidden constant is a digest."""
    code = code_of(function)
    return {
        **code.sources,
        **{n: digest(n, t) if n in code.hidden else t for n, t in code.constants.items()},
    }


@cache
def digest(name: str, text: str) -> str:
    """Returns what stands for a constant's value on disk. It is slow to compute, so that a short value cannot be guessed.

    It has no key: one that lies beside it would protect nothing, and a fork would have the same one.
    """
    if is_digest(text):
        return text
    value = hashlib.scrypt(text.encode(), salt=name.encode(), n=1 << 14, r=8, p=1, dklen=16)
    return _DIGEST + value.hex()


def is_digest(text: str) -> bool:
    """Returns True if a text of `written` is a digest."""
    return text.startswith(_DIGEST)


def same(one: str, other: str) -> bool:
    """Returns True if two texts of `written` are the same code, though two versions of Python may write it differently."""
    if one == other:
        return True
    try:
        return ast.dump(_parsed(one)) == ast.dump(_parsed(other))
    except SyntaxError:  # a function of nothing but a docstring
        return False


def _in_source(name: str, value: object, module: str) -> bool:
    """Returns True if the value is in the source: a literal, or made of such values by types and operators."""
    expression = _assignments(module).get(name)
    if expression is None:
        return False
    try:
        return bool(ast.literal_eval(expression) == value)  # which may have been set again since
    except (ValueError, TypeError, SyntaxError):
        scope = vars(sys.modules[module])
        named = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return all(
            used != name and used in scope and _in_source(used, scope[used], module)
            for used in named - _VALUE_TYPES
        )


def _reached(code: FunctionType | type) -> list[FunctionType | type]:
    """Returns the code, and the functions and classes of its module that it uses, directly or through others."""
    reached = [code]
    for user in reached:
        reached += [used for used in _used(user) if used not in reached]
    return reached


def _tree(code: FunctionType | type) -> ast.AST:
    tree = _parsed(textwrap.dedent(inspect.getsource(code))).body[0]
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def _used(code: FunctionType | type) -> list[FunctionType | type]:
    """Returns the functions and classes of its module that the code names, without their decorators' wrappers."""
    values = [inspect.unwrap(value) if callable(value) else value for _, value in _globals(code)]
    run = [value for value in values if isinstance(value, FunctionType | type)]
    return [value for value in run if value.__module__ == code.__module__]


def _globals(code: FunctionType | type) -> list[tuple[str, object]]:
    """Returns the values of the module that the code names, sorted by name, and those that their expressions name in turn."""
    members = [code] if isinstance(code, FunctionType) else vars(code).values()
    functions = [f for f in members if isinstance(f, FunctionType)]
    names = [(name, f.__globals__) for f in functions for name in _names(f.__code__)]
    values: dict[str, object] = {}
    for name, scope in names:
        if name not in values:
            values[name] = scope.get(name)
            expression = _made(name, values[name], code.__module__)
            parts = ast.walk(expression) if expression else ()
            names += [(part.id, scope) for part in parts if isinstance(part, ast.Name)]
    return [(name, values[name]) for name in sorted(values) if values[name] is not None]


def _text(name: str, value: object, module: str) -> str | None:
    expression = _made(name, value, module)
    return ast.unparse(expression) if expression else _literal(value)


def _made(name: str, value: object, module: str) -> ast.expr | None:
    """Returns the expression by which a module makes an object, such as a pattern.

    None for literals, for functions, classes and modules, and for what is imported.
    """
    own = isinstance(value, FunctionType | type | ModuleType)
    return None if own or _literal(value) is not None else _assignments(module).get(name)


@cache
def _assignments(module: str) -> Mapping[str, ast.expr]:
    """Returns the expression assigned to each name at the top of a module."""
    try:
        tree = _parsed(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # typed at a prompt: the functions are refused for that
        return {}
    assignments: dict[str, ast.expr] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr):
            assignments |= {target.id: value for target in targets if isinstance(target, ast.Name)}
    return assignments


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names that the code uses, and those in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _literal(value: object) -> str | None:
    """Returns the value as source, the same in every process; None for an object that is no plain value."""
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
