"""The page of the calls has everything it needs with it."""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from http_demo import Reply, answer


class Links(HTMLParser):
    """What a page loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"link": "href", "script": "src", "img": "src"}
        self.loaded += [value for name, value in attrs if name == names.get(tag) and value]


@pytest.fixture(scope="module")
def page() -> Reply:
    return answer("GET", "/docs")


def test_the_page_loads_only_what_this_server_has(page: Reply) -> None:
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    loaded = Links(page.body.decode()).loaded
    assert len(loaded) == 4
    sizes = {}
    for link in loaded:
        assert not re.match(r"\w+:|/", link)  # relative: a gateway may put something before the path
        reply = answer("GET", urljoin("/docs", link))
        assert reply.status == 200
        sizes[reply.headers["content-type"]] = len(reply.body)
    assert sizes["text/css"] > 100_000
    assert "image/png" in sizes


def test_the_script_shows_our_schema_and_asks_nobody_else() -> None:
    start = answer("GET", "/docs/start.js").body.decode()
    assert 'url: "openapi.json"' in start
    assert "validatorUrl: null" in start
    assert len(answer("GET", "/docs/swagger-ui-bundle.js").body) > 1_000_000


def test_a_browser_is_forbidden_to_load_from_elsewhere(page: Reply) -> None:
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert all("http" not in sources and "*" not in sources for sources in policy.values())


def test_the_title_cannot_break_the_page(page: Reply) -> None:
    assert b"<title>Demo &lt;1&gt;</title>" in page.body


@pytest.mark.parametrize("name", ["other.js", "..%2f..%2f__init__.py", "%2e%2e", "swagger-ui.css%00", ""])
def test_nothing_else_is_handed_out(name: str) -> None:
    assert answer("GET", f"/docs/{name}").failure[:2] == (404, "path_not_found")
