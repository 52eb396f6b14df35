"""The site is built as `make docs` builds it, and needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lakehouse import errors
from support import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built from a copy of the pages. `--strict` ends with 1 for a link or an anchor that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    text = (ROOT / "zensical.toml").read_text()
    (folder / "zensical.toml").write_text(text.replace('paths = ["."]', f'paths = ["{ROOT}"]'))
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*", text)
        assert not [
            tag for tag in loaded if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)
        ]
        assert 'class="mermaid"' not in text, f"{page}: the script that draws it is elsewhere"


def test_errors_and_expectations_have_their_sections(site):
    shown = (site / "reference/errors.html").read_text()
    for error in vars(errors).values():
        if isinstance(error, type):
            assert f'id="lakehouse.errors.{error.__name__}"' in shown
    assert "column_values_to_not_be_null" in (site / "reference/expectations.html").read_text()


def test_a_search_finds_what_is_typed(served):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium on the PATH (Debian and Ubuntu: apt install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{served}/index.html", wait_until="networkidle")
        page.keyboard.press("Control+k")
        page.keyboard.type("quarantine", delay=20)
        page.get_by_text("Rows are in the quarantine").first.click()
        page.wait_for_url("**/operate/troubleshooting.html*")
        browser.close()
    assert asked and all(url.startswith((served, "blob:", "data:")) for url in asked)
