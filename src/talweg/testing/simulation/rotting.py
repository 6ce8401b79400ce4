"""What befalls a closed log: a byte flips, or its end is gone. Only where its store can notice: behind what
is noted as durable, what looks like a torn tail is one, and the store says so."""

from random import Random
from typing import NamedTuple

from talweg.storage.files import Files
from talweg.storage.meta_file import read_meta
from talweg.storage.scan import READ_BYTES_MAX, Unsound, frames
from talweg.storage.stable_file import read_stable_index
from talweg.storage.torn_tail import is_torn
from talweg.testing.disk import SimulatedFiles
from talweg.testing.node import GROUP


class Rot(NamedTuple):
    """What happened to a file."""

    log: str
    position: int
    value: int | None  # the byte that stands there now; None: the file ends there, or is gone


def rot(files: SimulatedFiles, random: Random) -> Rot | None:
    """None if there is no log, or the store would take it for torn."""
    logs = [f"{GROUP}/{name}" for name in files.list(GROUP) if name.endswith(".log")]
    contents = [files.content(log) for log in logs]
    if not any(contents):
        return None
    ((log, content),) = random.choices(list(zip(logs, contents, strict=True)), list(map(len, contents)))
    position, mask = random.randrange(len(content)), random.randrange(1, 256)
    value = None if log == logs[-1] and mask < 64 else content[position] ^ mask
    if value is None:
        files.put(log, content[:position])
    else:
        files.flip(log, position, mask)
    if log == logs[-1] and _goes_unnoticed(files, log):
        files.put(log, content)
        return None
    if value is None and mask < 32:
        files.remove(log)
    return Rot(log, position, value)


def _goes_unnoticed(files: Files, log: str) -> bool:
    meta = read_meta(files, GROUP)
    assert meta is not None
    base_index = int(log.removesuffix(".log")[-20:])
    index, position = base_index - 1, 0
    if base_index == meta.start_base_index:
        index, position = meta.start_index, meta.start_position
    file = files.open(log)
    size = file.size()
    try:
        for header, frame in frames(file, position, size, READ_BYTES_MAX):
            index, position = header.index, position + len(frame)
        torn = True
    except Unsound:
        torn = is_torn(file, position, size)
    finally:
        file.close()
    return torn and index >= read_stable_index(files, GROUP, meta.changes)
