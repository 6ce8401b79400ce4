"""How a session is asked for; nothing here starts one."""

import pytest

from talweg.pipeline.session import _patient


@pytest.mark.parametrize(
    ("given", "asked_for"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),  # whoever says how many attempts gets as many
        ("local", "local"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_tasks_on_this_machine_have_four_attempts(given: str, asked_for: str) -> None:
    assert _patient(given) == asked_for
