"""Settings come from flags, variables and a file, in that order, and wrong ones are called by their names."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import settings as settings_page
from talweg.config import (
    BrokerSettings,
    ManagerSettings,
    ProcessSettings,
    default_of,
    describe,
    load_settings,
    settings_of,
)
from talweg.errors import InvalidSetting

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = [BrokerSettings, ManagerSettings]


def broker(flags: dict[str, Any] | None = None, **environment: str) -> BrokerSettings:
    return load_settings(BrokerSettings, flags or {}, environment)


def manager(flags: dict[str, Any] | None = None, **environment: str) -> ManagerSettings:
    return load_settings(ManagerSettings, flags or {}, environment)


def refusal(process: type[ProcessSettings], flags: dict[str, Any] | None = None, **environment: str) -> str:
    with pytest.raises(InvalidSetting) as refused:
        load_settings(process, flags or {}, environment)
    return str(refused.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "talweg.toml"


def test_without_a_word_everything_has_its_default() -> None:
    assert broker() == BrokerSettings()
    assert manager() == ManagerSettings()
    assert broker().managers == ("http://127.0.0.1:8000",)
    assert (manager().partitions_max, broker().heartbeat_seconds) == (4000, 1.0)


def test_the_first_place_that_says_something_counts(file: Path) -> None:
    file.write_text("port = 1\n[broker]\nport = 2\n[manager]\nport = 9\n")
    places: dict[str, str] = {"TALWEG_CONFIG": str(file)}
    assert broker(**places).port == 2
    assert manager(**places).port == 9
    file.write_text("port = 1\n[manager]\nport = 9\n")
    assert broker(**places).port == 1
    places["PORT"] = "3"
    assert broker(**places).port == 3
    places["TALWEG_PORT"] = "4"
    assert broker(**places).port == 4
    assert broker({"--port": "5"}, **places).port == 5
    other = file.with_name("other.toml")
    other.write_text("host = 'localhost'")
    assert broker({"--config": str(other)}, TALWEG_CONFIG=str(file)).host == "localhost"


def test_the_variables_of_the_reference_documents_work() -> None:
    settings = broker(
        PORT="8005", MANAGER_ADDRESS="http://10.0.0.1:8000/", CURRENT_ADDRESS="http://10.0.0.2:8005"
    )
    assert settings.port == 8005
    assert settings.managers == ("http://10.0.0.1:8000",)
    assert settings.address == "http://10.0.0.2:8005"
    assert manager(READ_ONLY="True").read_only
    assert not manager(READ_ONLY="False").read_only
    assert not manager(READ_ONLY="").read_only
    assert settings_of(ManagerSettings)["read_only"].short == "-r"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("1.5 s", 1.5),
        ("5m", 300),
        ("5min", 300),
        ("12h", 43_200),
        ("7d", 604_800),
    ],
)
def test_times_are_written_as_people_write_them(text: str, seconds: float) -> None:
    assert manager(TALWEG_REPLACE_AFTER=text).replace_seconds == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("65536", 65_536), ("64 KiB", 65_536), ("64kib", 65_536), ("10 MB", 10_000_000), ("1.5 MiB", 1_572_864)],
)
def test_sizes_are_written_as_people_write_them(text: str, count: int) -> None:
    assert broker(TALWEG_BODY_MAX=text).body_bytes_max == count


@pytest.mark.parametrize(
    ("process", "name", "text"),
    [
        (BrokerSettings, "TALWEG_PORT", "65536"),
        (BrokerSettings, "TALWEG_PORT", "-1"),
        (BrokerSettings, "TALWEG_PORT", "eighty"),
        (BrokerSettings, "TALWEG_PORT", "80.0"),
        (BrokerSettings, "TALWEG_PORT", "٣"),
        (BrokerSettings, "PORT", "tcp://10.0.0.1:80"),
        (BrokerSettings, "TALWEG_HEARTBEAT", "1"),
        (BrokerSettings, "TALWEG_HEARTBEAT", "1 fortnight"),
        (BrokerSettings, "TALWEG_HEARTBEAT", "-1s"),
        (BrokerSettings, "TALWEG_HEARTBEAT", "2h"),
        (BrokerSettings, "TALWEG_BODY_MAX", "1.0001 KiB"),
        (BrokerSettings, "TALWEG_BODY_MAX", "64 KiBs"),
        (BrokerSettings, "TALWEG_BODY_MAX", "2 GiB"),
        (BrokerSettings, "CURRENT_ADDRESS", "127.0.0.1:8000"),
        (BrokerSettings, "CURRENT_ADDRESS", "https://a:1"),
        (BrokerSettings, "CURRENT_ADDRESS", "http://a:1/path"),
        (BrokerSettings, "CURRENT_ADDRESS", "http://a:port"),
        (BrokerSettings, "MANAGER_ADDRESS", ","),
        (BrokerSettings, "TALWEG_MANAGERS", "http://a:1,b:2"),
        (BrokerSettings, "TALWEG_PEER_ADDRESS", "a"),
        (BrokerSettings, "TALWEG_PEER_ADDRESS", "http://a:1"),
        (BrokerSettings, "TALWEG_STORAGE", "ftp://a/b"),
        (BrokerSettings, "TALWEG_DURABILITY", "perhaps"),
        (BrokerSettings, "TALWEG_HOST", "two words"),
        (BrokerSettings, "TALWEG_DATA", "a\nb"),
        (ManagerSettings, "READ_ONLY", "maybe"),
        (ManagerSettings, "TALWEG_METADATA", "metadata.db"),
        (ManagerSettings, "TALWEG_METADATA", "mongodb://a/b"),
        (ManagerSettings, "TALWEG_BROKER_NETWORKS", "10.0.0.0/33"),
        (ManagerSettings, "TALWEG_RETENTION", "never"),
        (ManagerSettings, "TALWEG_REPLICATION", "0"),
    ],
)
def test_a_wrong_setting_is_called_by_its_name_and_told_what_was_expected(
    process: type[ProcessSettings], name: str, text: str
) -> None:
    said = refusal(process, **{name: text})
    (kind,) = (s.kind for s in settings_of(process).values() if name in (s.variable, s.also))
    assert said.startswith(f"{name}: expected {kind.expected}, not ")
    assert (repr(text) in said) != kind.secret


def test_a_wrong_setting_is_spelt_as_in_its_source(file: Path) -> None:
    assert refusal(BrokerSettings, {"--port": "x"}, PORT="1").startswith("--port: expected")
    file.write_text("[broker]\nport = true")
    assert refusal(BrokerSettings, {"--config": str(file)}).startswith(
        f"port in [broker] of {file}: expected"
    )
    file.write_text("port = 'x'")
    assert refusal(BrokerSettings, {"--config": str(file)}).startswith(f"port in {file}: expected")


def test_a_password_is_not_repeated() -> None:
    assert "secret" not in refusal(ManagerSettings, TALWEG_METADATA="postgres://me:secret@host/db")


def test_an_unknown_setting_is_refused_with_a_guess(file: Path) -> None:
    assert (
        refusal(BrokerSettings, TALWEG_PRT="1")
        == "TALWEG_PRT: there is no such setting; is TALWEG_PORT meant?"
    )
    assert refusal(BrokerSettings, {"--prt": "1"}) == "--prt: there is no such setting; is --port meant?"
    file.write_text("[broker]\nheartbeats = '1s'")
    said = refusal(ManagerSettings, TALWEG_CONFIG=str(file))
    assert said == f"heartbeats in [broker] of {file}: there is no such setting; is heartbeat meant?"
    file.write_text("[gateway]\nport = 1")
    assert refusal(BrokerSettings, TALWEG_CONFIG=str(file)).startswith(
        f"gateway in {file}: there is no such setting"
    )
    file.write_text("broker = 1")
    assert refusal(BrokerSettings, TALWEG_CONFIG=str(file)) == f"broker in {file}: expected a table, [broker]"


def test_settings_of_other_processes_may_stand_beside_our_own(file: Path) -> None:
    file.write_text("metadata = 'sqlite:///m.db'\ntick = '50ms'")
    assert (
        broker(TALWEG_METADATA="redis://a:1", TALWEG_URL="http://a:1", TALWEG_CONFIG=str(file)).tick_seconds
        == 0.05
    )
    assert manager(TALWEG_TICK="1ms", TALWEG_CONFIG=str(file)).metadata == "sqlite:///m.db"


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    assert (
        refusal(BrokerSettings, TALWEG_CONFIG=str(file))
        == f"--config: {file} cannot be read: No such file or directory"
    )
    file.write_text("port 80")
    assert refusal(BrokerSettings, TALWEG_CONFIG=str(file)).startswith(f"--config: {file} is not TOML: ")
    file.write_bytes(b"\xff")
    assert refusal(BrokerSettings, TALWEG_CONFIG=str(file)).startswith(f"--config: {file} is not TOML: ")


def test_a_file_has_toml_types(file: Path) -> None:
    file.write_text(
        "body_max = 2097152\nheartbeat = '2s'\n[broker]\nmanagers = ['http://a:1', 'http://b:2']\n"
        "[manager]\nread_only = true\nretention = 'forever'\nretention_size = '1 GiB'\n"
    )
    assert broker(TALWEG_CONFIG=str(file)).managers == ("http://a:1", "http://b:2")
    settings = manager(TALWEG_CONFIG=str(file))
    assert (settings.read_only, settings.body_bytes_max, settings.heartbeat_seconds) == (True, 2 << 20, 2.0)
    assert (settings.retention_seconds, settings.retention_bytes) == (None, 1 << 30)


def test_settings_that_do_not_go_together_are_refused() -> None:
    assert refusal(BrokerSettings, TALWEG_HOST="0.0.0.0").startswith("TALWEG_ADDRESS: expected the URL")
    assert broker(TALWEG_HOST="0.0.0.0", CURRENT_ADDRESS="http://a:1").endpoint(5) == "http://a:1"
    said = refusal(BrokerSettings, {"--leader-ticks": 4}, TALWEG_ELECTION_TICKS="11")
    assert said == "--leader-ticks: expected at most a third of TALWEG_ELECTION_TICKS"
    assert refusal(BrokerSettings, PORT="0").startswith("TALWEG_DATA: expected a directory")
    assert broker(PORT="0", TALWEG_DATA="d").port == 0
    assert refusal(BrokerSettings, TALWEG_BODY_MAX="1 GiB").startswith(
        "TALWEG_BODY_MAX: expected no more than"
    )
    assert refusal(ManagerSettings, TALWEG_MESSAGE_MAX="1 GiB").startswith(
        "TALWEG_MESSAGE_MAX: expected no more"
    )


def test_what_follows_from_other_settings_follows() -> None:
    settings = broker(PORT="8005")
    assert settings.endpoint(8005) == "http://127.0.0.1:8005"
    assert settings.peer_endpoint(9000) == "127.0.0.1:9000"
    assert settings.data_directory() == "talweg-data/broker-8005"
    assert settings.storage_url() == "talweg-data/broker-8005/log"
    assert broker(TALWEG_STORAGE="memory://").storage_url() == "memory://"
    settings = broker(TALWEG_HOST="::1", TALWEG_PEER_ADDRESS="[::1]:7")
    assert (settings.endpoint(1), settings.peer_endpoint(2)) == ("http://[::1]:1", "[::1]:7")
    assert broker(CURRENT_ADDRESS="http://[::2]:1").peer_endpoint(2) == "[::2]:2"


@pytest.mark.parametrize("process", PROCESSES)
def test_every_setting_is_described_and_its_default_can_be_written(process: type[ProcessSettings]) -> None:
    text = describe(process)
    defaults = process()
    table = settings_of(process)
    assert len({setting.flag for setting in table.values()}) == len(table)
    for field, setting in table.items():
        assert setting.flag in text
        assert setting.variable in text
        assert setting.purpose.endswith(".")
        assert setting.variable == "TALWEG_" + setting.flag.removeprefix("--").replace("-", "_").upper()
        if not setting.default:
            written = default_of(process, field)
            assert getattr(load_settings(process, {setting.flag: written}, {}), field) == getattr(
                defaults, field
            )


def test_a_setting_of_both_processes_is_the_same_in_both() -> None:
    ours, theirs = settings_of(BrokerSettings), settings_of(ManagerSettings)
    shared = ours.keys() & theirs.keys()
    assert shared == {field.name for field in msgspec.structs.fields(ProcessSettings)}
    for field in shared:
        assert ours[field][:2] == theirs[field][:2]
    alone = (ours | theirs).keys() - shared
    variables = {(ours | theirs)[field].variable for field in alone}
    assert variables.isdisjoint(ours[field].variable for field in shared)


def test_the_page_of_settings_is_written_from_the_table() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == settings_page.render(), "docs/settings.md is not what the table says: make reference"


@pytest.mark.parametrize("process", PROCESSES)
def test_every_setting_is_used_by_the_process_that_takes_it(process: type[ProcessSettings]) -> None:
    package = ROOT / "src" / "talweg"
    files = [*(package / process.section).glob("*.py"), *(package / "cli").glob("*.py")]
    files.append(package / "config" / "settings.py")  # its methods
    code = "".join(file.read_text() for file in files)
    assert [field for field in settings_of(process) if not re.search(rf"\.{field}\b", code)] == []
