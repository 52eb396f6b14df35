"""The file `lakehouse.toml`: settings by their names, a table of its own where a setting is of a pipeline or of a table.

root = ".lakehouse"          # a relative folder is one beside the file
tables = ["orders"]
module_path = ["."]
fresh_within = "2 seconds"

[kafka]
"security.protocol" = "SASL_SSL"

[freshness]
orders = "every 30 seconds"

[resources.orders]
driver_memory = "2g"

[together]
all = ["orders", "returns"]

[repair.turnover]
partitions = 24
rows = 10000
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from lakehouse.errors import SettingsError

NAME = "lakehouse.toml"
_FOLDERS = ("root", "jars")
_OF_NAMES = ("kafka", "spark_conf", "freshness", "resources", "together", "repair")


@dataclass(frozen=True, slots=True)
class Place:
    """Where settings stand: how errors name it, the folder of relative ones, how a setting is written."""

    name: str
    folder: Path
    line: str
    table: str


def read(path: Path, known: Collection[str]) -> dict[str, str | dict[str, str]]:
    """The settings of the file, each as text as the environment has it, or as a mapping.

    Raises SettingsError.
    """
    try:
        given = tomllib.loads(path.read_text())
    except OSError as err:
        raise SettingsError(
            f"config={path}: the settings file cannot be read ({err}); correct LAKEHOUSE_CONFIG"
        ) from err
    except ValueError as err:
        raise SettingsError(
            f"config={path}: the settings file must be TOML ({err}); correct it"
        ) from err
    form = ("{0} = value", "[{0}] and a line `name = value` for each")
    return texts(Place(f"config={path}", path.parent, *form), given, known)


def texts(
    place: Place, given: Mapping[str, object], known: Collection[str]
) -> dict[str, str | dict[str, str]]:
    """Settings by their names, each as text as the environment has it, or as a mapping.

    Raises SettingsError.
    """
    if unknown := sorted(given.keys() - set(known)):
        near = get_close_matches(unknown[0], known, 1)
        raise SettingsError(
            f"{place.name}, {unknown[0]}: there is no setting of that name; "
            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}")
        )
    return {name: _as_text(place, name, value) for name, value in given.items()}


def _as_text(place: Place, name: str, value: object) -> str | dict[str, str]:
    if isinstance(value, Mapping) != (name in _OF_NAMES):
        form = (place.table if name in _OF_NAMES else place.line).format(name)
        raise SettingsError(
            f"{place.name}, {name}={value!r}: the setting has another form; write {form}"
        )
    if isinstance(value, Mapping):
        return {key: _text(place, f"{name}.{key}", each) for key, each in value.items()}
    if name == "module_path":
        folders = value if isinstance(value, list) else [value]
        return os.pathsep.join(str((place.folder / str(folder)).resolve()) for folder in folders)
    if name == "notification_urls" and isinstance(value, list):
        return " ".join(_text(place, name, each) for each in value)  # an address may have a comma
    text = _text(place, name, value)
    if name in _FOLDERS and ":/" not in text:
        return str(place.folder / Path(text).expanduser())
    return text


def _text(place: Place, name: str, value: object) -> str:
    """A value as the environment has it: "a, b" of a list, "partitions 24, rows 10000" of a table."""
    if isinstance(value, list):
        return ", ".join(_text(place, name, each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key} {_text(place, f'{name}.{key}', each)}" for key, each in value.items()
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise SettingsError(
        f"{place.name}, {name}={value!r}: a text, a whole number, true or false; write it as one"
    )
