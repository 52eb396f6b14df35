"""The values of settings from text, as the environment and the file give them."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from lakehouse.errors import SettingsError

PAIRS = ("spark_conf", "freshness", "resources", "together", "repair")
_WHOLE = (
    "shuffle_partitions",
    "max_offsets_per_trigger",
    "max_files_per_trigger",
    "step_rows",
    "state_memory_mb",
    "restarts",
    "query_restarts",
    "metrics_port",
    "versions",
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # s3a://bucket; as a path it has one slash


def check_local(name: str, text: str) -> None:
    """Raises SettingsError for an address such as `s3a://bucket`."""
    if _SCHEME.match(text):
        raise SettingsError(
            f"{name}={text!r}: a folder, of this machine or mounted; object stores are not supported yet, and as a path this "
            f"would be a new folder in the present one. Set LAKEHOUSE_{name.upper()} to a folder"
        )


def parsed(name: str, text: str) -> object:
    """The value of the setting of that name. Raises SettingsError."""
    parse = _PARSERS.get(name)
    return parse(name, text) if parse else text


def _folder(name: str, text: str) -> Path:
    check_local(name, text)
    if not text.strip():
        raise SettingsError(
            f"{name}={text!r}: a folder; empty would be wherever one happens to be. Set LAKEHOUSE_{name.upper()} to one, "
            "or remove it"
        )
    return Path(text)


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _words(name: str, text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _folders(name: str, text: str) -> tuple[Path, ...]:
    return tuple(Path(part).expanduser().resolve() for part in text.split(os.pathsep) if part)


def _pairs(name: str, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise SettingsError(
            f"{name}: 'key=value' pairs separated by ';'; a pair has no '=', so write key=value"
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _file_of_pools(name: str, text: str) -> str:
    if not text:
        return text
    file = Path(text).expanduser().resolve()  # a detached job has a working directory of its own
    if not file.is_file():
        raise SettingsError(
            f"{name}={text!r}: a file of Spark's pools, and there is none; write it, or remove this"
        )
    return str(file)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(
            f"{name}={text!r}: true or false; set LAKEHOUSE_{name.upper()} to one or remove it"
        )
    return text.lower() == "true"


def _whole(name: str, text: str) -> int:
    if not text.isdigit():
        raise SettingsError(
            f"{name}={text!r}: a whole number; set LAKEHOUSE_{name.upper()} to one or remove it"
        )
    return int(text)


_PARSERS: dict[str, Callable[[str, str], object]] = {
    "root": _folder,
    "jars": _folder,
    "tables": _names,
    "module_path": _folders,
    "notification_urls": _words,
    "scheduler_pools": _file_of_pools,
    "early_results": _flag,
    **dict.fromkeys(PAIRS, _pairs),
    **dict.fromkeys(_WHOLE, _whole),
}
