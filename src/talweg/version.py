"""The version, where everyone may read it without importing what they do not need."""

__version__ = "0.1.0"
