from talweg.manager.health import Health


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def health(clock: Clock) -> Health:
    return Health(heartbeat_seconds=1.0, missed_max=3, clock=clock)


def test_three_missed_heartbeats_and_it_does_not_live() -> None:
    clock = Clock()
    watched = health(clock)
    watched.hear(1)
    clock.now += 3.4
    assert not watched.misses(1)
    clock.now += 0.2
    assert watched.misses(1)
    watched.hear(1)
    assert watched.is_heard(1)


def test_three_failed_looks_and_it_does_not_live() -> None:
    clock = Clock()
    watched = health(clock)
    watched.hear(1)
    watched.look_failed(1)
    watched.look_failed(1)
    assert not watched.misses(1)
    watched.look_failed(1)
    assert watched.misses(1)
    watched.look_succeeded(1)
    assert not watched.misses(1)


def test_only_those_that_are_late_are_looked_at() -> None:
    clock = Clock()
    watched = health(clock)
    watched.hear(1)
    clock.now += 1.0
    watched.hear(2)
    clock.now += 0.6
    assert watched.silent([1, 2]) == [1]


def test_a_new_primary_gives_everybody_time_but_remembers_how_long_they_are_gone() -> None:
    clock = Clock()
    watched = health(clock)
    watched.begin({1: 500.0, 2: 0.5})
    assert not watched.misses(1)
    assert not watched.is_heard(1)
    assert watched.gone_seconds(1) == 500.0
    clock.now += 4
    assert watched.misses(1)
    assert watched.misses(2)
    assert watched.gone_seconds(2) == 4.5


def test_who_was_away_itself_has_missed_nothing() -> None:
    clock = Clock()
    watched = health(clock)
    watched.hear(1)
    clock.now += 60
    watched.listen_again()
    assert not watched.misses(1)
