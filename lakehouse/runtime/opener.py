"""How others are asked over HTTP: as urllib does, but an answer that names another address is not followed."""

from ssl import SSLContext
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
)


def opener(tls: SSLContext | None = None) -> OpenerDirector:
    """Raises HTTPError for each status from 300 on.

    A password would go to another address with the request, and a body would not be posted there any more.
    """
    made = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(context=tls),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made
