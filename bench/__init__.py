"""The benchmarks of Talweg: `make bench`. Not installed, and nothing in src knows of it.

A benchmark is a module with `ABOUT` (how it measures), `FULL` and `QUICK` (how much), and `run`, which
yields rows as it goes. Those that need brokers start processes of their own (`processes`) and talk to
them over pipes (`commands`). A figure that misses its requirement is reported, never raised.
"""
