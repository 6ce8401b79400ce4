"""The reference design, as its documents describe it, for the benchmark alone. Talweg is compared with it.

A FastAPI manager that forwards every request over HTTP to one of three FastAPI brokers. Each partition of a
topic is a pysyncobj object on all three brokers; to produce is a replicated call that returns once it is
applied, and applying it is an SQL insert with a commit of its own, through SQLAlchemy, into the SQLite file
that each broker has.

Where the documents leave a choice, the faster one was taken: the manager keeps what it knows in memory and
its connections to the brokers open, requests are served by as many threads as there are connections, and
inserts of one broker take turns instead of meeting SQLite's lock.
"""
