"""`python -m tests.reliability` writes the matrix into docs/explanation/reliability.md."""

from tests.reliability.page import PAGE, with_tables

PAGE.write_text(with_tables(PAGE.read_text()))
