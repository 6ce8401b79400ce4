"""From a method and a path to what was declared for them."""

from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from talweg.errors import BadRequest, MethodNotAllowed, PathNotFound

T = TypeVar("T")

_NO_VALUES: Final[tuple[str, ...]] = ()


class _Node(Generic[T]):
    """A place in the tree of paths: where the next segment leads, and what is declared here."""

    __slots__ = ("any_segment", "by_segment", "targets")

    def __init__(self) -> None:
        self.by_segment: dict[str, _Node[T]] = {}
        self.any_segment: _Node[T] | None = None
        self.targets: dict[str, T] = {}  # by method


class Router(Generic[T]):
    """A tree of paths. Each segment is percent-decoded once, after the path was cut at its slashes."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._plain: dict[bytes, dict[str, T]] = {}  # paths without parameters, found without a walk
        self._depth_max = 0

    def add(self, method: str, segments: tuple[str | None, ...], target: T) -> None:
        """Declare a target; None stands for any one segment, an empty one too."""
        node = self._root
        for segment in segments:
            if segment is None:
                node.any_segment = node.any_segment or _Node()
                node = node.any_segment
            else:
                node = node.by_segment.setdefault(segment, _Node())
        assert method not in node.targets, f"{method} {segments} is declared twice"
        node.targets[method] = target
        self._depth_max = max(self._depth_max, len(segments))
        if None not in segments:
            path = "/" + "/".join(segment for segment in segments if segment is not None)
            self._plain[path.encode()] = node.targets

    def find(self, method: str, raw_path: bytes) -> tuple[T, tuple[str, ...]]:
        """What is declared, and what stands in its places; raises PathNotFound and MethodNotAllowed."""
        targets = self._plain.get(raw_path)
        values = _NO_VALUES
        if targets is None:
            targets, values = self._walk(raw_path)
        target = targets.get(method)
        if target is None:
            allowed = (*targets, "OPTIONS")
            raise MethodNotAllowed(f"{method} is not allowed here, but {', '.join(allowed)}", allowed)
        return target, values

    def _walk(self, raw_path: bytes) -> tuple[dict[str, T], tuple[str, ...]]:
        try:
            parts = raw_path.decode("ascii").split("/", self._depth_max + 1)[1:]
            segments = [unquote(part, errors="strict") if "%" in part else part for part in parts]
        except UnicodeDecodeError:
            raise BadRequest("the path is not percent-encoded UTF-8") from None
        found = _descend(self._root, segments, 0)
        if found is None:
            raise PathNotFound("there is no such path here")
        return found


def _descend(node: _Node[T], segments: list[str], depth: int) -> tuple[dict[str, T], tuple[str, ...]] | None:
    """A segment by its name before one that takes any."""
    if depth == len(segments):
        return (node.targets, _NO_VALUES) if node.targets else None
    by_name = node.by_segment.get(segments[depth])
    found = _descend(by_name, segments, depth + 1) if by_name is not None else None
    if found is None and node.any_segment is not None:
        found = _descend(node.any_segment, segments, depth + 1)
        if found is not None:
            found = found[0], (segments[depth], *found[1])
    return found
