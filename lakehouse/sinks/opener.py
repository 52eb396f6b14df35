"""How targets ask over HTTP: as urllib has it, but an answer that names another address is an answer, and is not followed."""

from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
)


def opener() -> OpenerDirector:
    """Raises HTTPError for each status from 300 on: a body would not be posted any more to another address."""
    found = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
    ):
        found.add_handler(handler())
    return found
