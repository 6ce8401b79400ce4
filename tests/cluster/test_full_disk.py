"""A broker whose disk is full: the cluster goes on, and the broker too as soon as there is space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.clients import Load
from cluster.conftest import QUICK
from talweg.testing.cluster import LocalCluster

pytestmark = pytest.mark.xdist_group("cluster-full-disk")

FULL = "broker-1"
DISK_BYTES = 48 << 20


class SmallDisk:
    """A file system of its own, so small that it can be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / "filler"

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(self.path)]
        if os.geteuid() != 0:
            mount = ["sudo", "-n", *mount]
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        assert mounted.returncode == 0, f"this test must be able to mount a tmpfs: {mounted.stderr}"
        if os.geteuid() != 0:
            subprocess.run(["sudo", "-n", "chown", str(os.geteuid()), str(self.path)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        unmount = ["umount", "--lazy", str(self.path)]
        subprocess.run(unmount if os.geteuid() == 0 else ["sudo", "-n", *unmount], check=True)

    def fill(self) -> None:
        """To the last byte."""
        with self.filler.open("ab", buffering=0) as file:
            piece = 1 << 20
            while piece:
                try:
                    written = file.write(b"\0" * piece)
                    piece = piece if written == piece else piece // 2
                except OSError:
                    piece //= 2

    def empty(self) -> None:
        self.filler.unlink()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path_factory.mktemp("cluster") / "data" / FULL) as disk:
        yield disk


@pytest.fixture(scope="module")
def module_cluster(disk: SmallDisk) -> Iterator[LocalCluster]:
    with LocalCluster(disk.path.parent, settings=QUICK, readers=1) as cluster:
        yield cluster


def test_a_full_disk_stops_nobody_and_is_caught_up_without_a_restart(
    cluster: LocalCluster, disk: SmallDisk, topic: str
) -> None:
    with Load(cluster, topic, partitions=3) as load:
        led = [partition for partition in range(3) if cluster.wait_for_leader(topic, partition) == FULL]
        assert led, "leaders are spread: it leads one of three"
        starts = cluster.processes[FULL].starts
        disk.fill()
        load.wait_for_progress(50)
        disk.empty()
        load.wait_for_progress(50)
        assert cluster.processes[FULL].running
        assert cluster.processes[FULL].starts == starts
        # What was written meanwhile is on it, too: with another one dead, it is needed for every message.
        other = next(name for name in cluster.brokers if name != FULL)
        cluster.kill(other)
        load.wait_for_progress(20)
        cluster.restart(other)


def test_a_broker_that_starts_on_a_full_disk_serves_again_once_there_is_space(
    cluster: LocalCluster, disk: SmallDisk, topic: str
) -> None:
    with Load(cluster, topic, partitions=3) as load:
        cluster.kill(FULL)
        disk.fill()
        cluster.processes[FULL].start()
        load.wait_for_progress(50)
        disk.empty()
        if not cluster.processes[FULL].running:  # it may say that it cannot; supervision starts it again
            assert "Traceback" not in cluster.processes[FULL].last_words()
            cluster.processes[FULL].start()
        cluster.wait_until_ready()
        load.wait_for_progress(20)
