"""Addresses of notifications: http:// and https:// take a JSON document by POST, all others belong to apprise.

Any part of an address may hold a secret, so only its scheme is ever shown.
"""

import logging
import re
from functools import cache
from typing import TYPE_CHECKING

from lakehouse.errors import SettingsError

if TYPE_CHECKING:
    from apprise import Apprise

WITHIN = 5.0  # seconds for one attempt
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_http(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def shown(address: str) -> str:
    """Returns an address as messages show it: its scheme alone."""
    scheme = _SCHEME.match(address)
    return f"{scheme[0] if scheme else ''}***"


@cache  # settings are made again and again from each other
def check(name: str, address: str) -> None:
    """Raises SettingsError for an address to which nothing can be sent."""
    if is_http(address):
        return
    try:
        sender(address)
    except ModuleNotFoundError as err:
        raise SettingsError(
            f"{name}={shown(address)}: addresses other than http:// and https:// need the package {err.name}, which is not "
            "installed; pip install 'unified-lakehouse[notify]'"
        ) from err
    except ValueError as err:
        raise SettingsError(
            f"{name}={shown(address)}: an address is http(s)://..., or one of apprise with all of its parts, such as "
            "mailto://user:password@host?to=someone@host; compare it with https://appriseit.com/services/"
        ) from err


def sender(address: str) -> "Apprise":
    """Returns a sender to an address of apprise, for one message: a second one would wait, for up to 5.5 s.

    Raises ValueError if apprise has no such service, or a part of the address is missing.
    """
    # 0.5 s and 43 MB (time and memory before and after): apprise loads its 180 services at once
    import apprise

    logging.getLogger("apprise").propagate = False  # its lines have parts of addresses
    asset = apprise.AppriseAsset(app_id="unified-lakehouse", service_timeout=WITHIN)
    service = apprise.Apprise.instantiate(address, asset=asset)
    if service is None:
        raise ValueError(shown(address))
    return apprise.Apprise(service, asset=asset)
