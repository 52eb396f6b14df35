"""The modules of tables that the settings name, imported."""

import importlib
import sys
from types import ModuleType

from lakehouse.errors import DeclarationError
from lakehouse.settings import Settings


def imported(settings: Settings) -> list[ModuleType]:
    """The modules in their order, looked for in `module_path` last.

    Raises DeclarationError for one that is not found.
    """
    sys.path += [str(folder) for folder in settings.module_path if str(folder) not in sys.path]
    return [_imported(name) for name in settings.tables]


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        raise DeclarationError(
            f"tables={name!r}: cannot be imported ({err}); install the package, or name its folder in module_path or PYTHONPATH"
        ) from err
