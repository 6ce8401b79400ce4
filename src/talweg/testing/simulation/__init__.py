"""A whole cluster of replicas in one process, on virtual time, from one seed.

    report = run(seed)      everything happens: elections, crashes, partitions, disks that fail, …
    report.failure          None, or which invariant did not hold
    report.counts           what happened, and how often: a run in which nothing did proves nothing
    report.digest           of the trace; the same seed always gives the same one

The replicas, their stores and the bytes between them are the real ones. Simulated are time
(`schedule`), the network (`network`), the disks (`talweg.testing.disk`), and whoever uses or harms the
cluster (`clients`, `operator`, `faults`). `invariants` looks at every step, with what only a simulation
can know: `history` has every entry and every commit, `durable` what each disk must hold. `ending` puts
everything right at last and looks whether all replicas agree.
"""

from talweg.testing.simulation.history import Violation
from talweg.testing.simulation.profile import Profile, draw_profile
from talweg.testing.simulation.run import Report, run

__all__ = ["Profile", "Report", "Violation", "draw_profile", "run"]
