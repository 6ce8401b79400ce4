from talweg.manager.leaders import Leaders

GROUP = 7


def test_a_report_of_a_later_term_counts_and_one_of_an_earlier_does_not() -> None:
    leaders = Leaders()
    leaders.report(GROUP, 1, 4)
    leaders.report(GROUP, 2, 3)
    assert (leaders.by_group[GROUP], leaders.term(GROUP)) == (1, 4)
    leaders.report(GROUP, 2, 5)
    assert (leaders.by_group[GROUP], leaders.term(GROUP)) == (2, 5)


def test_a_hint_is_followed_but_is_a_guess() -> None:
    leaders = Leaders()
    leaders.report(GROUP, 1, 4)
    leaders.correct(GROUP, 1, 3)
    assert (leaders.by_group[GROUP], leaders.term(GROUP)) == (3, 0)
    leaders.report(GROUP, 3, 5)
    assert leaders.term(GROUP) == 5


def test_a_hint_of_one_who_is_no_longer_asked_is_not_followed() -> None:
    leaders = Leaders()
    leaders.report(GROUP, 2, 4)
    leaders.correct(GROUP, 1, 3)
    assert leaders.by_group[GROUP] == 2


def test_one_who_does_not_lead_and_knows_no_better_is_forgotten() -> None:
    leaders = Leaders()
    leaders.report(GROUP, 1, 4)
    leaders.correct(GROUP, 1, None)
    assert GROUP not in leaders.by_group
    leaders.report(GROUP, 9, 3)  # still a leader of the past
    assert GROUP not in leaders.by_group


def test_listeners_hear_whom_leadership_left() -> None:
    leaders = Leaders()
    heard: list[tuple[int, int]] = []
    leaders.listen(lambda group, before: heard.append((group, before)))
    leaders.report(GROUP, 1, 1)
    leaders.report(GROUP, 1, 1)
    leaders.report(GROUP, 2, 2)
    leaders.correct(GROUP, 2, 3)
    assert heard == [(GROUP, 1), (GROUP, 2)]


def test_groups_that_are_no_more_are_forgotten() -> None:
    leaders = Leaders()
    leaders.report(1, 1, 1)
    leaders.report(2, 1, 1)
    leaders.keep({2})
    assert leaders.by_group == {2: 1}
    assert leaders.counts() == {1: 1}
