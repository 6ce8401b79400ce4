"""The page that shows the calls and lets one try them, without the internet.

The page is Swagger UI. Its files are in the wheel of `swagger-ui-bundle-v2` and are read from there; the
page's own policy forbids a browser to load anything from elsewhere.
"""

from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from talweg.errors import PathNotFound
from talweg.http.calls import Call, Parameters, RawAnswer, RawResponse, Request

_HTML: Final = "text/html"
_CSS: Final = "text/css"
_SCRIPT: Final = "text/javascript"
_ICON: Final = "image/png"
_JSON: Final = "application/json"

_POLICY: Final = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-cache"),
)

# Addresses are relative, so that the page works behind a gateway that puts something before the path.
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="calls"></div>
<noscript>This page needs JavaScript. The schema is at <a href="openapi.json">openapi.json</a>.</noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

# No validator and no query configuration: both would take the page to addresses that others choose.
_START: Final = b"""\
SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#calls",
    deepLinking: true,
    displayRequestDuration: true,
    queryConfigEnabled: false,
    tryItOutEnabled: true,
    validatorUrl: null,
});
"""

_BUNDLED: Final = {
    "swagger-ui.css": _CSS,
    "swagger-ui-bundle.js": _SCRIPT,
    "favicon-32x32.png": _ICON,
}


class Asset(Parameters, frozen=True, kw_only=True):
    """Which file of the page."""

    file: str


def docs_calls(schema: dict[str, Any]) -> tuple[Call, ...]:
    """`/openapi.json`, `/docs` and the files that the page loads."""
    document = msgspec.json.encode(schema)
    page = _PAGE.format(title=escape(schema["info"]["title"])).encode()

    async def show_schema(_: Request[None, None]) -> RawResponse:
        return RawResponse(body=document, media_type=_JSON)

    async def show_page(_: Request[None, None]) -> RawResponse:
        return RawResponse(body=page, media_type=f"{_HTML}; charset=utf-8", headers=_HEADERS)

    async def show_asset(request: Request[Asset, None]) -> RawResponse:
        name = request.parameters.file
        if name == "start.js":
            return RawResponse(body=_START, media_type=_SCRIPT, headers=_HEADERS)
        if name not in _BUNDLED:
            raise PathNotFound("the page has no such file")
        return RawResponse(body=_bundled(name), media_type=_BUNDLED[name], headers=_HEADERS)

    files = RawAnswer((_SCRIPT, _CSS, _ICON))
    return (
        Call("GET", "/openapi.json", show_schema, "This schema", answer=RawAnswer((_JSON,)), listed=False),
        Call("GET", "/docs", show_page, "The calls, as a page", answer=RawAnswer((_HTML,)), listed=False),
        Call(
            "GET",
            "/docs/{file}",
            show_asset,
            "A file of the page",
            parameters=Asset,
            answer=files,
            errors=(PathNotFound,),
            listed=False,
        ),
    )


@cache
def _bundled(name: str) -> bytes:
    """A file from the wheel; one and a half megabytes at most, read once."""
    found = find_spec("swagger_ui_bundle")
    assert found is not None and found.origin is not None, "a dependency of the package is not installed"
    (directory,) = (Path(found.origin).parent / "vendor").glob("swagger-ui-*")
    return (directory / name).read_bytes()
