"""Who is the primary: over a real store, with a clock that the test sets."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from talweg.errors import LeaseLost, MetadataUnavailable
from talweg.manager.lease import LeaseKeeper
from talweg.manager.store import StoreCalls
from talweg.metadata import MetadataStore, open_metadata

LEASE_SECONDS = 2.0


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Stage:
    """Keepers on one store."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}/metadata.db"
        self.stores: list[StoreCalls] = []
        self.begun: list[str] = []
        self.down = False

    def open(self, url: str) -> MetadataStore:
        if self.down:
            raise MetadataUnavailable("down")
        return open_metadata(url)

    def keeper(self, name: str, clock: Clock | None = None) -> LeaseKeeper:
        store = StoreCalls(self.url, seconds_max=5.0, open_store=self.open)
        self.stores.append(store)

        async def begin() -> None:
            self.begun.append(name)

        return LeaseKeeper(
            store,
            holder=name,
            endpoint=f"http://{name}",
            lease_seconds=LEASE_SECONDS,
            begin=begin,
            clock=clock or Clock(),
        )


def play(path: Path, scenario: Callable[[Stage], Awaitable[Any]]) -> None:
    async def run() -> None:
        stage = Stage(path)
        try:
            await scenario(stage)
        finally:
            for store in stage.stores:
                await store.close()

    asyncio.run(run())


def test_one_takes_it_and_another_stands_by(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        first, second = stage.keeper("first"), stage.keeper("second")
        await first.step()
        await second.step()
        assert first.holds
        assert not second.holds
        with pytest.raises(LeaseLost):
            second.epoch  # noqa: B018
        assert stage.begun == ["first"]

    play(tmp_path, scenario)


def test_a_stand_by_takes_over_when_it_lapses_and_the_paused_one_knows_at_once(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        clock = Clock()
        first, second = stage.keeper("first", clock), stage.keeper("second")
        await first.step()
        epoch = first.epoch
        while not second.holds:
            pause_seconds = await second.step()
            await asyncio.sleep(pause_seconds)
        clock.ahead = LEASE_SECONDS  # the pause, as the first one's clock has it
        assert not first.holds
        assert second.epoch > epoch
        await first.step()  # it hears that it lost
        await first.step()  # and stands by
        assert not first.holds
        assert second.holds

    play(tmp_path, scenario)


def test_one_that_lapsed_and_that_nobody_took_is_held_again_after_a_new_beginning(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        clock = Clock()
        keeper = stage.keeper("first", clock)
        await keeper.step()
        epoch = keeper.epoch
        clock.ahead = LEASE_SECONDS
        assert not keeper.holds
        assert keeper.lapsed_at is not None
        await keeper.step()
        assert keeper.epoch == epoch
        assert stage.begun == ["first", "first"]

    play(tmp_path, scenario)


def test_given_back_it_is_free_at_once(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        first, second = stage.keeper("first"), stage.keeper("second")
        await first.step()
        await first.release()
        assert not first.holds
        await second.step()
        assert second.holds

    play(tmp_path, scenario)


def test_a_process_that_is_started_again_does_not_wait_for_its_former_self(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        former, again = stage.keeper("same"), stage.keeper("same")
        await former.step()
        epoch = former.epoch
        await again.step()
        assert again.epoch > epoch
        await former.step()
        await former.step()  # two of one name do not take it from each other for ever
        assert again.holds
        assert not former.holds

    play(tmp_path, scenario)


def test_a_store_that_is_down_costs_the_lease_only_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        clock = Clock()
        keeper = stage.keeper("first", clock)
        stage.down = True
        await keeper.step()
        assert not keeper.holds
        stage.down = False
        await keeper.step()
        assert keeper.holds
        clock.ahead = LEASE_SECONDS
        assert not keeper.holds

    play(tmp_path, scenario)
