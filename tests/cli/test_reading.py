"""What of a batch is in the span that is to be read."""

import pytest

from talweg.cli.reading import Span
from talweg.client.received import ReceivedBatch


@pytest.mark.parametrize(
    ("span", "batch", "expected"),
    [
        (Span(0, None), (0, 10), (0, 10)),
        (Span(5, None), (0, 10), (5, 10)),
        (Span(0, 5), (0, 10), (0, 5)),
        (Span(3, 6), (0, 10), (3, 6)),
        (Span(3, 3), (0, 10), None),
        # Somebody waits for what is beyond the end, and others write what lies before it.
        (Span(10, None), (0, 10), None),
        (Span(20, None), (0, 10), None),
        # Retention has overtaken it.
        (Span(0, 5), (7, 10), None),
    ],
)
def test_a_batch_is_cut_to_the_span(
    span: Span, batch: tuple[int, int], expected: tuple[int, int] | None
) -> None:
    cut = span.cut(ReceivedBatch("t", 0, *batch, ()))
    assert (cut and (cut.first_offset, cut.next_offset)) == expected


def test_a_span_without_an_end_has_no_length() -> None:
    assert [len(span) for span in (Span(3, 7), Span(7, 3), Span(3, None))] == [4, 0, 0]
