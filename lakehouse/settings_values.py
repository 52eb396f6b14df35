"""The values of settings as they are given: in `lakehouse.toml`, in the environment, in Dagster's YAML.

All three have the same settings. A variable is a line of the file, with `__` before each name below a setting:

root = ".lakehouse"          # LAKEHOUSE_ROOT; a relative folder is one beside the file
tables = ["orders"]          # LAKEHOUSE_TABLES=orders

[kafka]
"sasl.username" = "ann"      # LAKEHOUSE_KAFKA_SASL_USERNAME

[registry]
url = "http://10.0.0.7:8081" # LAKEHOUSE_REGISTRY_URL

[freshness]
orders = "every 30 seconds"  # LAKEHOUSE_FRESHNESS__ORDERS

[resources.orders]
driver_memory = "2g"         # LAKEHOUSE_RESOURCES__ORDERS__DRIVER_MEMORY

[together]
all = ["orders", "returns"]  # LAKEHOUSE_TOGETHER__ALL=orders,returns

[repair.turnover]
partitions = 24              # LAKEHOUSE_REPAIR__TURNOVER__PARTITIONS
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from lakehouse.errors import SettingsError
from lakehouse.object_paths import ObjectPath, to_path

NAME = "lakehouse.toml"
ROOT = ".lakehouse"  # beside the file, if there is one, else in the current folder
PREFIX = "LAKEHOUSE_"
SECRET = ("kafka", "registry", "spark_conf", "notification_command", "notification_urls")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # s3a://bucket; as a path it has one slash


@dataclass(frozen=True, slots=True, repr=False)
class Resources:
    """Settings of one pipeline's streaming job alone; None means the common one."""

    spark_master: str | None = None
    driver_memory: str | None = None
    state_memory_mb: int | None = None
    shuffle_partitions: int | None = None
    max_offsets_per_trigger: int | None = None
    max_files_per_trigger: int | None = None
    step_rows: int | None = None
    scheduler_pools: str | None = None

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"Resources({given})"

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


RESOURCES = {f.name: f.type for f in fields(Resources)}


@dataclass(frozen=True, slots=True)
class Repair:
    """The amount of a table that may be repaired a day without asking."""

    partitions: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The place where settings are given: its name in errors, and the folder of relative paths.

    `line` and `table` write a setting that has a value, or names below it. `unknown` returns an unknown
    name as it was written there, and the nearest setting, empty if none is near.
    """

    name: str
    folder: Path
    line: Callable[[str], str]
    table: Callable[[str], str]
    unknown: Callable[[str, str], tuple[str, str]] = lambda name, near: (name, near)


def read(place: Place, given: Mapping[str, object], types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by name, checked, in the form of JSON; `types` has all that there are. Raises SettingsError."""
    return _named(types, place, "", given)


def of_file(path: Path, types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the file; raises SettingsError."""
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
    place = Place(
        f"config={path}",
        path.parent,
        "{} = value".format,
        "[{}] and a line `name = value` for each".format,
    )
    return {"root": str(path.parent / ROOT)} | read(place, given, types)


def of_variables(environment: Mapping[str, str], types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the variables; raises SettingsError."""
    given: dict[str, Any] = {}
    # the names from the setting on, with a dot between two -> the variable
    written: dict[str, str] = {}
    # the deepest first: a variable of a whole table is refused, and must not be lost below another
    for variable in sorted(environment, key=lambda name: -name.count("__")):
        if variable.startswith(PREFIX):
            *above, name = _names_of(variable.removeprefix(PREFIX))
            written[".".join([*above, name])] = variable
            at = given
            for part in above:
                at = at.setdefault(part, {})
            at[name] = environment[variable]
    if "spark_conf" in given:
        given["spark_conf"] = _of_json(given["spark_conf"])
    unknown = partial(_unknown_variable, written)
    return read(Place("environment", Path(), _variable, _variables, unknown), given, types)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both, with `above` preferred, and tables merged name by name."""
    tables = {
        name: merged(below[name], value)
        for name, value in above.items()
        if isinstance(value, Mapping) and name in below
    }
    return {**below, **above, **tables}


def check_local(name: str, text: str) -> None:
    """Raises SettingsError for an address such as `s3a://bucket`."""
    if _SCHEME.match(text):
        raise SettingsError(
            f"{name}={text!r}: a folder, of this machine or mounted"
            f"{', or in S3 as s3://BUCKET/FOLDER' if name == 'root' else ''}; set {PREFIX}{name.upper()} to one"
        )


# ---- variables


def _names_of(variable: str) -> list[str]:
    """Returns the names in a variable, the setting first: RESOURCES__ORDERS__STEP_ROWS has three."""
    for setting in ("KAFKA", "REGISTRY"):
        if variable.startswith(f"{setting}_"):
            name = variable.removeprefix(f"{setting}_")
            return [setting.lower(), name.lower().replace("_", ".")]
    setting, *names = variable.split("__", 1)
    if setting in ("RESOURCES", "REPAIR"):  # the name of a table may have "__"
        names = [part for name in names for part in name.rsplit("__", 1)]
    # a shell's names are capitals; other names are as they are written
    return [setting.lower(), *(name.lower() if name.isupper() else name for name in names)]


def _of_json(given: Any) -> object:
    try:
        return json.loads(given) if given else {}
    except (ValueError, TypeError) as err:
        raise SettingsError(
            f"environment, spark_conf: the properties of Spark as JSON, because their names have dots and capitals; write "
            f"{_variables('spark_conf')}"
        ) from err


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper().replace('.', '__')}=value"


def _unknown_variable(written: Mapping[str, str], name: str, near: str) -> tuple[str, str]:
    """Returns the variable that has the name, and one with the nearest setting in its place."""
    variable = next(v for names, v in written.items() if f"{names}.".startswith(f"{name}."))
    at = len(PREFIX) + len(name.replace(".", "__"))
    above = variable[: at - len(name.split(".")[-1])]
    return variable, f"{above}{near.upper()}{variable[at:]}" if near else ""


def _variables(name: str) -> str:
    if name == "spark_conf":
        return PREFIX + """SPARK_CONF='{"spark.ui.port": "4040"}'"""
    below = {
        "kafka": "_<PROPERTY>",
        "registry": "_<PROPERTY>",
        "repair": "__<TABLE>__ROWS",
        "resources": "__<NAME>__STEP_ROWS",
    }
    variable = PREFIX + name.upper().replace(".", "__")
    return f"{variable}{below.get(name, '__<NAME>')}=value, a variable for each"


# ---- values: each function takes place, name and value, and returns the value in its form


def _refused(place: Place, name: str, value: object, rule: str, fix: str) -> SettingsError:
    shown = name if name.split(".")[0] in SECRET else f"{name}={value!r}"
    return SettingsError(f"{place.name}, {shown}: {rule}; {fix}")


def _text(place: Place, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        rule = "the setting has another form"
        raise _refused(place, name, value, rule, f"write {place.line(name)}")
    if isinstance(value, str | int):
        return str(value)
    rule = "a text, a whole number, true or false"
    raise _refused(place, name, value, rule, f"write {place.line(name)}")


def _whole(place: Place, name: str, value: object) -> int:
    text = _text(place, name, value)
    if not re.fullmatch(r"-?\d+", text):
        raise _refused(place, name, value, "a whole number", f"write {place.line(name)}")
    return int(text)


def _flag(place: Place, name: str, value: object) -> bool:
    text = _text(place, name, value).lower()
    if text not in ("true", "false"):
        raise _refused(place, name, value, "true or false", f"write {place.line(name)}")
    return text == "true"


def _path(place: Place, text: str) -> str:
    # a detached job has a working directory of its own
    return str((place.folder / Path(text).expanduser()).resolve())


def _root(place: Place, name: str, value: object) -> str:
    path = to_path(_text(place, name, value))
    return str(path) if isinstance(path, ObjectPath) else _folder(place, name, value)


def _folder(place: Place, name: str, value: object) -> str:
    text = _text(place, name, value)
    check_local(name, text)
    if not text.strip():
        rule = "a folder; empty would be wherever one happens to be"
        raise _refused(place, name, value, rule, f"write {place.line(name)}, or remove it")
    return _path(place, text)


def _file(place: Place, name: str, value: object) -> str:
    text = _text(place, name, value)
    return _path(place, text) if text else ""


def _list(separator: str | None, place: Place, name: str, value: object) -> list[str]:
    """Returns the texts of a list, or the parts of a text; `separator` None means blanks."""
    items = value if isinstance(value, list) else _text(place, name, value).split(separator)
    return [text for item in items if (text := _text(place, name, item).strip())]


def _folders(place: Place, name: str, value: object) -> list[str]:
    return [_path(place, text) for text in _list(os.pathsep, place, name, value)]


def _table(reader: "Reader", place: Place, name: str, value: object) -> dict[str, Any]:
    if value == "":  # a variable that is set to nothing
        return {}
    if not isinstance(value, Mapping):
        rule = "the setting has another form"
        raise _refused(place, name, value, rule, f"write {place.table(name)}")
    return {key: reader(place, f"{name}.{key}", item) for key, item in value.items()}


def _named(types: Mapping[str, Any], place: Place, name: str, value: object) -> dict[str, Any]:
    """Returns a table whose names are settings; the `name` of the whole is empty."""
    above = f"{name}." if name else ""
    given = _table(lambda place, name, value: value, place, name, value)
    if unknown := sorted(given.keys() - set(types)):
        [near] = get_close_matches(unknown[0], types, 1) or [""]
        written, right = place.unknown(above + unknown[0], near)
        raise SettingsError(
            f"{place.name}, {written}: there is no setting of that name; "
            + (f"did you mean {right}?" if near else f"there are {', '.join(sorted(types))}")
        )
    readers = {key: _READERS.get(key) or _BY_TYPE.get(types[key], _text) for key in given}
    return {key: reader(place, above + key, given[key]) for key, reader in readers.items()}


Reader = Callable[[Place, str, Any], Any]
_READERS: dict[str, Reader] = {
    "root": _root,
    "local": _folder,
    "jars": _folder,
    "tables": partial(_list, ","),
    "module_path": _folders,
    "scheduler_pools": _file,
    "notification_urls": partial(_list, None),
    "kafka": partial(_table, _text),
    "registry": partial(_table, _text),
    "spark_conf": partial(_table, _text),
    "freshness": partial(_table, _text),
    "together": partial(_table, partial(_list, ",")),
    "resources": partial(_table, partial(_named, RESOURCES)),
    "repair": partial(_table, partial(_named, {f.name: f.type for f in fields(Repair)})),
}
_BY_TYPE: dict[Any, Reader] = {int: _whole, int | None: _whole, bool: _flag}
