"""The only way from a name to a path: a name from a file, a message, a request or the environment stays in its folder."""

from pathlib import Path

from lakehouse.errors import PathError

LONGEST = 200  # bytes of a declared name, so that endings fit in the 255 of a file's
_LONGEST_PART = 240  # leaves room in the 255 bytes for the ending of a temporary file


def below(folder: Path, *names: str) -> Path:
    """Returns the path below the folder with these names, each one folder or file.

    :raises PathError: for a name that cannot be one, or leaves the folder.
    """
    for name in names:
        if not is_name(name):
            raise PathError(
                f"name={_shown(name)} (folder={folder}): a name is one folder or file, without '/', and of at most "
                f"{_LONGEST_PART} bytes; give another"
            )
    return folder.joinpath(*names)


def within(folder: Path, path: str) -> Path:
    """Returns the path of a file by the relative path that a log or a list has for it. Raises PathError as `relative`."""
    return folder / relative(folder, path)


def relative(folder: Path, path: str) -> str:
    """Returns the relative path that a log or a list has for a file of the folder.

    :raises PathError: for one that is absolute or leaves the folder.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or not path.strip("/."):
        raise PathError(
            f"path={_shown(path)} (folder={folder}): a file of a folder lies in it; whoever wrote this path is not to be trusted"
        )
    return path


def is_name(name: str) -> bool:
    """Returns True if the name can be one folder or file."""
    return (
        name not in ("", ".", "..")
        and "/" not in name
        and "\0" not in name
        and len(name.encode()) <= _LONGEST_PART
    )


def check_length(what: str, name: str) -> None:
    """Raises PathError for a name too long for the files that have it."""
    if len(name.encode()) > LONGEST:
        raise PathError(
            f"{what}={_shown(name)}: {len(name.encode())} bytes, and files that are called by it have room for {LONGEST}; "
            "choose a shorter name"
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
