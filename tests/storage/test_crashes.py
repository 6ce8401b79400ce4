"""A crash at every step of every change leaves the old log or the new one. On segment files."""

from random import Random

import pytest

from storage.conftest import GROUP, segment_stores
from storage.disk_scenarios import SCENARIOS, Picture, Scenario, allowed, open_log, picture, prepared
from storage.logs import LogMaker, contents, write
from talweg.storage import LogStore
from talweg.testing.disk import PowerCut, SimulatedFiles

SEEDS = 6


def named(scenario: Scenario) -> str:
    return scenario.name


def old_and_new(scenario: Scenario) -> tuple[Picture, Picture]:
    files, store = prepared(scenario)
    old = picture(store)
    assert picture(open_log(files)) == old
    scenario.change(segment_stores(files).open(GROUP, 1))
    new = picture(open_log(files))
    assert new != old
    return old, new


def interrupted(scenario: Scenario, steps: int, seed: int) -> SimulatedFiles | None:
    """The disk after a crash `steps` steps into the change; None if the change is over by then."""
    files, store = prepared(scenario)
    files.cut_power_after(steps)
    try:
        scenario.change(store)
    except PowerCut:
        files.crash(Random(seed))
        return files
    return None


def goes_on(store: LogStore, count: int = 25) -> None:
    """The log takes more entries, and keeps them."""
    summary = store.summary()
    term = max([summary.start_term, *(term for _, term in summary.terms)])
    make = LogMaker(summary.last_index, term, summary.next_offset)
    before = contents(store)
    more = make.batches(count)
    write(store, *more)
    assert contents(store) == before + more


@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(scenario: Scenario) -> None:
    old, new = old_and_new(scenario)
    fine = allowed(scenario, old, new)
    steps = 0
    while True:
        for seed in range(SEEDS):
            files = interrupted(scenario, steps, seed)
            if files is None:
                assert steps > 1
                return
            found = picture(open_log(files))
            assert found in fine, (steps, seed)
            store = open_log(files)
            assert picture(store) == found
            goes_on(store)
            assert len(picture(open_log(files)).entries) == len(found.entries) + 25
        steps += 1


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if not one.partly], ids=named)
def test_a_crash_while_opening_after_a_crash_does_no_harm(scenario: Scenario) -> None:
    old, new = old_and_new(scenario)
    fine = allowed(scenario, old, new)
    steps = 0
    while (files := interrupted(scenario, steps, seed=steps)) is not None:
        opening_steps = 0
        while True:
            files.cut_power_after(opening_steps)
            try:
                open_log(files)
            except PowerCut:
                files.crash(Random(opening_steps))
                opening_steps += 1
                continue
            break
        files.crash(Random(steps))
        store = open_log(files)
        assert picture(store) in fine, steps
        goes_on(store)
        steps += 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_what_is_found_after_a_kill_at_any_step_survives_any_crash(scenario: Scenario) -> None:
    fine = allowed(scenario, *old_and_new(scenario))
    steps = 0
    while True:
        for seed in range(SEEDS):
            files, store = prepared(scenario)
            files.cut_power_after(steps)
            try:
                scenario.change(store)
            except PowerCut:
                files.keep_power()  # it was only the process that died
            else:
                assert steps > 1
                return
            store = open_log(files)
            assert picture(store) in fine, (steps, seed)
            goes_on(store, 1)  # in the file that is the last one now
            found = picture(store)
            files.crash(Random(seed))
            assert picture(open_log(files)) == found, (steps, seed)
        steps += 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_a_change_that_was_synced_survives_any_crash(scenario: Scenario) -> None:
    _, new = old_and_new(scenario)
    for seed in range(SEEDS):
        files, store = prepared(scenario)
        scenario.change(store)
        files.crash(Random(seed))
        assert picture(open_log(files)) == new


def test_a_crash_while_a_group_is_made_leaves_it_or_nothing() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            files = SimulatedFiles()
            files.cut_power_after(steps)
            try:
                segment_stores(files).open(GROUP, 5)
            except PowerCut:
                files.crash(Random(seed))
            else:
                assert steps > 5
                return
            assert segment_stores(files).groups() in ({}, {GROUP: 5})
            store = open_log_of(files, 5)
            assert store.summary().last_index == 0
            goes_on(store)
        steps += 1


def test_a_group_that_is_found_after_a_kill_while_it_was_made_survives_any_crash() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            files = SimulatedFiles()
            files.cut_power_after(steps)
            try:
                segment_stores(files).open(GROUP, 5)
            except PowerCut:
                files.keep_power()
            else:
                assert steps > 5
                return
            open_log_of(files, 5)
            files.crash(Random(seed))
            assert segment_stores(files).groups() == {GROUP: 5}
            assert open_log_of(files, 5).summary().hard_state is None
        steps += 1


def open_log_of(files: SimulatedFiles, incarnation: int) -> LogStore:
    files.restart()
    return segment_stores(files).open(GROUP, incarnation)


def test_a_crash_while_a_group_is_deleted_leaves_it_whole_or_gone() -> None:
    steps = 0
    while True:
        for seed in range(SEEDS):
            files, store = prepared(SCENARIOS[0])
            old = picture(store)
            store.close()
            stores = segment_stores(files)
            files.cut_power_after(steps)
            try:
                stores.delete(GROUP)
            except PowerCut:
                files.crash(Random(seed))
            else:
                assert steps > 5
                files.crash(Random(seed))
                assert segment_stores(files).groups() == {}
                return
            found = segment_stores(files).groups()
            if found == {GROUP: 1}:
                assert picture(open_log(files)) == old
                segment_stores(files).delete(GROUP)
            assert segment_stores(files).groups() == {}
            again = open_log_of(files, 2)
            assert again.summary().last_index == 0
            assert again.summary().hard_state is None
            goes_on(again)
        steps += 1
