"""Protection of servers on the loopback interface against requests of foreign pages.

After DNS rebinding, a foreign name points to 127.0.0.1, and the header `Host` has that name.
"""

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

REFUSED = "Host: this server listens on the loopback interface and answers to localhost, 127.0.0.1 and [::1] alone\n"


def is_loopback(host: str) -> bool:
    """Returns True if a host is this machine and no other can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def answers(listening: str, header: str) -> bool:
    """Returns True if a server at that host answers a request with this header. One that is open to others answers all."""
    if not header or not is_loopback(listening):
        return True
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "") and "@" not in header
    except ValueError:
        return False


def guarded(application: Callable[..., Iterable[bytes]], listening: str) -> Callable[..., Any]:
    """Returns a WSGI application that refuses other hosts."""

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if answers(listening, environment.get("HTTP_HOST", "")):
            return application(environment, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [REFUSED.encode()]

    return answer
