"""The code that a function runs, for its fingerprint: comments and docstrings apart, with what it uses of its own module."""

import ast
import inspect
import textwrap
from functools import cache
from types import FunctionType

from lakehouse.errors import DeclarationError


@cache
def dumped(code: FunctionType) -> tuple[str, ...]:
    """The syntax trees of a function and of the functions and classes of the same module in it, as text.

    As they were when this was first asked, which the catalog does: a file that is edited beside a running job is not what
    the job runs. And never again: CPython 3.11 and 3.12 fail now and then when two threads make trees (its issue 106905).
    Raises DeclarationError if there is no file.
    """
    try:
        return tuple(map(ast.dump, _trees(code, frozenset())))
    except OSError as err:
        raise DeclarationError(
            f"table={code.__name__}: its code cannot be read ({err}), and by its code one declaration is told from another; "
            "declare it in a module file"
        ) from err


def _trees(code: FunctionType | type, seen: frozenset[str]) -> list[ast.AST]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    functions = [code] if isinstance(code, FunctionType) else [f for f in vars(code).values() if isinstance(f, FunctionType)]
    named = {name: f.__globals__.get(name) for f in functions for name in f.__code__.co_names}
    used = [
        value
        for name, value in sorted(named.items())
        if isinstance(value, FunctionType | type) and value.__module__ == code.__module__ and name not in seen
    ]
    seen = seen | {code.__name__} | {each.__name__ for each in used}
    return [tree] + [tree for each in used for tree in _trees(each, seen)]
