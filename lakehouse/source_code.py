"""The code that a function runs, for its fingerprint: comments and docstrings apart, with what it uses of its own module."""

import ast
import inspect
import textwrap
from types import FunctionType


def trees(code: FunctionType | type, seen: frozenset[str] = frozenset()) -> list[ast.AST]:
    """The syntax trees of a function, or class, and of the functions and classes of the same module in it, but those `seen`."""
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
    return [tree] + [tree for each in used for tree in trees(each, seen)]
