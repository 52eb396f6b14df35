"""The code that a function runs, for its fingerprint: comments and docstrings apart, with what it calls of its own module."""

import ast
import inspect
import textwrap
from types import FunctionType


def trees(function: FunctionType, seen: frozenset[str] = frozenset()) -> list[ast.AST]:
    """The syntax trees of the function and of the functions of the same module that it calls, but those `seen`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if isinstance(tree, ast.FunctionDef):
        tree.decorator_list = []
        if ast.get_docstring(tree) is not None:
            tree.body = tree.body[1:]
    called = [
        value
        for name in sorted(function.__code__.co_names)
        if isinstance(value := function.__globals__.get(name), FunctionType)
        and value.__module__ == function.__module__
        and name not in seen
    ]
    seen = seen | {function.__name__} | {f.__name__ for f in called}
    return [tree] + [tree for f in called for tree in trees(f, seen)]
