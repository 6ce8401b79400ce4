"""Lets Spark find `format("talweg")` by itself: it looks for DefaultSource in modules of this name."""

from talweg.spark import TalwegSource as DefaultSource

__all__ = ["DefaultSource"]
