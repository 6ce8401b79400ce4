"""What documents name exists, the public names are the documented ones, and nothing is left lying about."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import reference
from house import commands, documents, tree
from talweg.records import Kind

ROOT = Path(__file__).resolve().parents[2]

Planted = Callable[..., Path]

SUBCOMMANDS: commands.Subcommands = {"start": {}, "topic": {"create": {}}, "server": {"list": {}}}


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    """A small tree: a few things that exist, and whatever a test adds."""

    def plant(**texts: str) -> Path:
        standing = {
            "Makefile": "SEEDS ?= 1\n\nhelp:\n\ntest: help\n",
            "README.md": "# Title\n",
            "tools/go": "takes --fast\n",
            "src/talweg/__init__.py": '"""Face."""\n\nfrom talweg.log import Log\n\n__all__ = ["Log"]\n',
            "src/talweg/log.py": '"""A log."""\n\nclass Log:\n    """Keeps."""\n\n    start: int = 0\n',
            "src/talweg/cli/main.py": '"""The command."""\n\nNAMES = ["value"]\n',
            "src/talweg/config/settings.py": '"""Settings."""\n\nNAMES = []\n',
            "tests/test_log.py": "",
        }
        for path, text in (standing | texts).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return plant


def test_everything_that_a_document_names_exists() -> None:
    assert documents.Tree(ROOT).pieces
    assert documents.wrong_pieces(ROOT, commands.talweg_subcommands()) == []


def test_every_link_leads_somewhere() -> None:
    assert documents.wrong_links(ROOT) == []


def test_settings_are_in_the_code_and_in_a_document() -> None:
    assert documents.wrong_settings(ROOT) == []


def test_the_glossary_names_every_kind_of_entry() -> None:
    written = re.search(r"\*\*Kind\.\*\* What an entry is: ([^.]+)\.", (ROOT / "GLOSSARY.md").read_text())
    assert written
    assert sorted(written[1].replace("no-op", "noop").upper().split(", ")) == sorted(Kind.__members__)


def test_the_public_names_are_the_documented_ones() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    assert page == reference.render(ROOT), "docs/reference.md is not what the code says: make reference"


def test_every_public_name_is_explained() -> None:
    names = [name for module in reference.packages(ROOT) for name in reference.public_names(ROOT, module)]
    assert [name.written for name in names if not name.sentence] == []


@pytest.mark.parametrize(
    "check",
    [
        tree.leftovers,
        tree.machine_paths,
        tree.foreign_hosts,
        tree.overgrown,
        tree.speechless,
        tree.unexplained,
    ],
)
def test_the_tree_is_kept(check: Callable[[Path], list[str]]) -> None:
    assert len(list(tree.files(ROOT))) > 20
    assert check(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "`src/talweg/log.py`, `log.py`, `src/*/log.py`, `tests/`, `.venv/bin/python`, `../README.md`",
        "`make`, `make test SEEDS=3`, `pytest tests/test_log.py::test_it`, `python -m talweg.log`",
        "`talweg.log`, `talweg.Log`, `talweg.log.Log.start`, `Log`, `Log.start`, `--fast`, `Makefile`",
        "`talweg up` and `spark/` do not work (not yet).",
        "lower `case`, `a b c`, `x = 1`, `n // 2`, `http`",
        "```sh\nmake test  # all of it\ncd talweg\n$ tools/go --fast\n```",
        "Not yet:\n\n```sh\ntalweg up\n```",
        "```python\nthis is `not` looked/at.py\n```",
        "`talweg start`, `talweg topic create x`, `talweg server`, `talweg server --fast`, `talweg --fast`",
        "`talweg start -- COMMAND`, `it's`, `a && b`, `sudo`, `.venv/`, `.venv/bin/pytest tests/test_log.py`",
        "```sh\nmake \\\n  test\ncd x && sudo -n make test; env X=1 make test | head -1 >gone <gone\n```",
        "```sh\n# a line of its own\ncurl -d 'a && b' x\n```",
        "```console\n$ make test\nwhat it answered\n```",
        "```text\nmake gone\n```",
    ],
)
def test_what_exists_or_is_marked_passes(planted: Planted, text: str) -> None:
    assert documents.wrong_pieces(planted(**{"docs/a.md": text}), SUBCOMMANDS) == []


@pytest.mark.parametrize(
    "text",
    [
        "`src/talweg/gone.py`",
        "`gone.py`",
        "`src/*/gone.py`",
        "`make gone`",
        "`make test GONE=1`",
        "`pytest tests/gone`",
        "`python -m talweg.gone`",
        "`.venv/bin/python -m bench`",
        "`talweg up`",
        "`talweg.gone`",
        "`talweg.log.Gone`",
        "`talweg.log.Log.gone`",
        "`GoneClass`",
        "`Gone`",
        "`Log.gone()`",
        "`tools/go --gone`",
        "```sh\nmake gone\n```",
        "```sh\ngone --fast\n```",
        "```sh\n./tools/gone\n```",
        "`log.py` is not yet there",
        "`gone.yaml`",
        "`gone.yml`",
        "`gone.cfg`",
        "`gone.ini`",
        "`gone.csv`",
        "`tools/go --fa`",
        "`talweg gone`",
        "`talweg value`",
        "`talweg topic gone`",
        "`talweg start -- make gone`",
        "`.venv/bin/gone`",
        "`.venv/bin/talweg topic gone`",
        "`.venv/gone`",
        "```sh\n.venv/bin/gone\n```",
        "```sh\ncd x && make gone\n```",
        "```sh\nmake test; make gone\n```",
        "```sh\nmake test | gone\n```",
        "```sh\nsudo -n make gone\n```",
        "```sh\nenv X=1 make gone\n```",
        "`sudo make gone`",
        "```sh\nmake \\\n  gone\n```",
        "```sh\nmake test \\\n```\n`gone.py`",
        "```sh\ncurl 'x\n```",
        "```\nmake gone\n```",
        "```console\n$ make gone\n```",
    ],
)
def test_what_does_not_exist_is_caught(planted: Planted, text: str) -> None:
    assert len(documents.wrong_pieces(planted(**{"docs/a.md": text}), SUBCOMMANDS)) == 1


def test_the_subcommands_are_those_of_the_command_itself() -> None:
    known = commands.talweg_subcommands()
    assert known["up"] == {}
    assert "create" in known["topic"]


def test_an_option_that_only_a_test_of_the_house_plants_is_none(planted: Planted) -> None:
    root = planted(**{"docs/a.md": "`--planted`", "tests/house/test_a.py": "'--planted'"})
    assert len(documents.wrong_pieces(root, SUBCOMMANDS)) == 1


def test_an_empty_directory_does_not_count_as_there(planted: Planted) -> None:
    root = planted(**{"docs/a.md": "`src/gone/`"})
    (root / "src/gone").mkdir()
    assert len(documents.wrong_pieces(root, SUBCOMMANDS)) == 1


def test_links_that_lead_nowhere_are_caught(planted: Planted) -> None:
    good = "[a](../README.md) [b](../README.md#title) [c](#part-two)\n\n# Part two\n"
    assert documents.wrong_links(planted(**{"docs/a.md": good})) == []
    bad = "[a](../GONE.md) [b](../README.md#gone) [c](#gone)"
    assert len(documents.wrong_links(planted(**{"docs/a.md": bad}))) == 3


def test_settings_that_one_side_does_not_know_are_caught(planted: Planted) -> None:
    code = {"src/talweg/config/settings.py": 'NAMES = ["TALWEG_PORT", "TALWEG_DATA"]'}
    document = {"README.md": "Set TALWEG_PORT or TALWEG_GONE.\nTALWEG_LATER is not yet there."}
    assert documents.wrong_settings(planted(**code, **document)) == [
        "README.md: there is no setting TALWEG_GONE",
        "TALWEG_DATA is in no document",
    ]


def test_an_export_that_is_not_documented_changes_the_page(planted: Planted) -> None:
    before = reference.render(planted())
    assert "| `Log` | Keeps. |" in before
    more = '"""Face."""\n\nfrom talweg.log import Log, cut\n\n__all__ = ["Log", "cut"]\n'
    log = (
        '"""A log."""\n\nclass Log:\n    """Keeps."""\n\ndef cut(log, *, at=0):\n    """Cuts. And more."""\n'
    )
    after = reference.render(planted(**{"src/talweg/__init__.py": more, "src/talweg/log.py": log}))
    assert after != before
    assert "| `cut(log, *, at)` | Cuts. |" in after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SIZE: int = 8  # of a word", "Of a word"),
        ('SIZE = 8\n"""A word\'s. And more."""', "A word's."),
        ("SIZE = 8", "The constant 8."),
    ],
)
def test_a_constant_is_explained_by_what_stands_beside_it(planted: Planted, text: str, said: str) -> None:
    face = '"""Face."""\n\nfrom talweg.log import SIZE\n\n__all__ = ["SIZE"]\n'
    root = planted(**{"src/talweg/__init__.py": face, "src/talweg/log.py": f'"""A log."""\n\n{text}\n'})
    assert f"| `SIZE` | {said} |" in reference.render(root)


@pytest.mark.parametrize("text", ['"""Face."""\n', '"""Face."""\n\n__all__ = ["Gone"]\n'])
def test_a_package_that_exports_nothing_or_what_it_has_not_is_caught(planted: Planted, text: str) -> None:
    root = planted(**{"src/talweg/__init__.py": text})
    with pytest.raises(reference.UnresolvedName):
        reference.render(root)


# Spelt in two halves, so that this file does not hold what it plants.
@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (tree.leftovers, "src/talweg/log.py", "# FIX" + "ME: later"),
        (tree.leftovers, "README.md", "TO" + "DO"),
        (tree.leftovers, "Makefile", "# XX" + "X"),
        (tree.leftovers, "examples/pipelines/log.py", "# FIX" + "ME"),
        (tree.machine_paths, "docs/a.md", "see /ho" + "me/alice/notes"),
        (tree.machine_paths, "tests/test_log.py", "open('/tm" + "p/probe/x')"),
        (tree.foreign_hosts, "constraints.txt", "numpy @ https" + "://packages.example.net/numpy.whl"),
        (tree.foreign_hosts, "constraints.txt", "--index" + "-url somewhere"),
        (tree.overgrown, "src/talweg/log.py", '"""A log."""\n' + "x = 1\n" * tree.LINES_MAX),
        (tree.speechless, "src/talweg/log.py", "x = 1\n"),
        (tree.speechless, "src/talweg/log.py", ""),
        (tree.unexplained, "src/talweg/log.py", '"""A."""\n\nclass Log:\n    def cut(self): ...\n'),
    ],
)
def test_what_should_not_lie_about_is_caught(
    planted: Planted, check: Callable[[Path], list[str]], path: str, text: str
) -> None:
    assert check(planted()) == []
    assert len(check(planted(**{path: text}))) == 1


def test_what_is_pure_gets_no_second_chance(request: pytest.FixtureRequest) -> None:
    """See tests/conftest.py; what does is in tests/test_groups.py."""
    assert request.node.get_closest_marker("flaky") is None
