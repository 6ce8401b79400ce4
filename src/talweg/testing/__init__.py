"""For tests: simulated network, disk and clock, and whole clusters made of them."""
