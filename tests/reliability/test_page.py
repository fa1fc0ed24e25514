"""The page says what the matrix says."""

from tests.reliability.page import PAGE, with_tables


def test_the_page_is_made_from_the_matrix():
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "python -m tests.reliability"
