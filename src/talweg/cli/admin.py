"""The client that administers a cluster, as commands open it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from talweg.client.admin import Admin


def open_admin(servers: str | None, timeout: float) -> "Admin":
    """A client for the managers that were named, or that TALWEG_URL names; to be used as a context."""
    # Only here: a command that needs no cluster, or only explains itself, need not wait for it to load.
    from talweg.client.admin import Admin  # noqa: PLC0415

    return Admin(servers, timeout=timeout)
