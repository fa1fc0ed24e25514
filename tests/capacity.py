"""What no attack on row spaces may do: give more images than the ranks of the update have room for.

Every run that a test makes is asked (`tests/simulator/conftest.py`, `tests/benchmarks/recorded_defenses.py`).
"""

import pandas as pd

ON_ROW_SPACES = "span"


def beyond_capacity(leakage: pd.DataFrame) -> pd.DataFrame:
    """The rows of a leakage table in which an attack on row spaces has more private images, returned or held back,
    than `capacity`; none where all is well."""
    rows = leakage[leakage.attack.str.startswith(ON_ROW_SPACES) & (leakage.status == "ok")]
    return rows[rows.held > rows.capacity]
