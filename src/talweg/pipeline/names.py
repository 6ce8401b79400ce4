"""Names that pipelines make of others: topics for dead letters, and groups. None is longer than it may be."""

import hashlib
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn

from talweg.errors import InvalidSetting

SUFFIX: Final = ".dlq"  # of topics for dead letters
GROUPS: Final = "pipeline"  # with which the names of groups begin
TOPIC_LENGTH_MAX: Final = 249  # letters of a topic's name
_GROUP_LENGTH_MAX: Final = 255
_PREFIX_LENGTH_MAX: Final = 150  # a pipeline's name has at most 100
_STEM_LENGTH_MAX: Final = TOPIC_LENGTH_MAX - len(SUFFIX)
_DIGITS: Final = 16  # of the hash that tells one long name from another: 64 bits


def shortened(name: str, length_max: int) -> str:
    """The name, if it is no longer than that; else its beginning, and a hash of all of it."""
    if len(name) <= length_max:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: length_max - 1 - _DIGITS]}-{digits}"


def stem_of(topic: str) -> str:
    """The name of the topic for a topic's dead letters without its suffix; that topic may be given, too."""
    return shortened(topic.removesuffix(SUFFIX), _STEM_LENGTH_MAX)


def dead_letter_topic(topic: str) -> str:
    """The topic for a topic's dead letters: `<topic>.dlq`, shortened if a name may not be as long."""
    return f"{stem_of(topic)}{SUFFIX}"


def dead_letter_topic_of(topic: Column) -> Column:
    """The same for each row's topic, without a call of Python for each."""
    digits = fn.substring(fn.sha2(topic.cast("binary"), 256), 1, _DIGITS)
    cut = fn.concat(fn.substring(topic, 1, _STEM_LENGTH_MAX - 1 - _DIGITS), fn.lit("-"), digits)
    return fn.concat(fn.when(fn.length(topic) <= _STEM_LENGTH_MAX, topic).otherwise(cut), fn.lit(SUFFIX))


def group_of(prefix: str, name: str) -> str:
    """The consumer group of a pipeline, or of a redrive, under which brokers see it."""
    return shortened(f"{prefix}.{name}", _GROUP_LENGTH_MAX)


def check_prefix(prefix: str) -> str:
    """What names of groups may begin with; raises InvalidSetting."""
    if not 1 <= len(prefix) <= _PREFIX_LENGTH_MAX or prefix.startswith("#"):
        raise InvalidSetting(
            f"--group {prefix!r}: expected 1 to {_PREFIX_LENGTH_MAX} characters, the first of them not #"
        )
    return prefix
