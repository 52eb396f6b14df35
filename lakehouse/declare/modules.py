"""The modules of tables that the settings name, imported, and the names of their pipelines."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings

_added: set[str] = set()  # folders that any settings of this process have added to `sys.path`


def imported(settings: Settings) -> list[ModuleType]:
    """Imports the modules in their order, with `module_path` searched last.

    Raises DeclarationError for a missing module, and for one that this process has from the
    `module_path` of other settings: Python keeps one module of a name.
    """
    extend_path(settings)
    modules = [_imported(name) for name in settings.tables]
    others = _added - {str(folder) for folder in settings.module_path}
    for name, module in zip(settings.tables, modules, strict=True):
        for folder in others:
            if module.__file__ and Path(module.__file__).is_relative_to(folder):
                raise DeclarationError(
                    f"tables={name!r}: this process has a module of that name already, {module.__file__}, of another lakehouse; "
                    "rename one of the two, or read them in two processes"
                )
    return modules


def extend_path(settings: Settings) -> None:
    """Adds `module_path` to the folders that Python searches, after all others."""
    added = [str(folder) for folder in settings.module_path if str(folder) not in sys.path]
    _added.update(added)
    sys.path += added


def pipeline_of(module: str) -> str:
    """Returns the name of a module's pipeline: the last part of its own.

    A module `tables` in a package has the package's name, since `tables` would be the name of every
    such pipeline.
    """
    package, _, name = module.rpartition(".")
    return package.rpartition(".")[2] if package and name == "tables" else name


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except TypeError as err:  # such as an option that a kind of table does not have
        frames = traceback.extract_tb(err.__traceback__)
        where = next(
            (f for f in reversed(frames) if "/lakehouse/declare/" not in f.filename), frames[-1]
        )
        raise DeclarationError(f"tables={name!r}, {where.filename}:{where.lineno}: {err}") from err
    except ModuleNotFoundError as err:
        raise DeclarationError(
            f"tables={name!r}: cannot be imported ({err}); install the package, or name its folder in module_path or PYTHONPATH"
        ) from err
