import pytest

from attacks import Knowledge, get_attack
from tests.attacks.conftest import MEAN, client, digits, generator, mlp


@pytest.mark.parametrize(
    ("mean", "std", "asked"),
    [
        (MEAN, None, ""),
        (0.9, None, "does the mean 0.9 fit?"),
        (MEAN, (4.0,), f"does the mean {MEAN} and the deviation 4 fit?"),
    ],
)
def test_a_mean_and_a_deviation_that_do_not_fit_are_asked_about(mean, std, asked):
    """Clients subtract MEAN from pixels in [0, 1], and divide by nothing."""
    observation = client(mlp(64), digits(4), 3)
    told = Knowledge(pixel_mean=(mean,), pixel_std=std)
    found = get_attack("span").run(observation, told, generator())
    said = " ".join(found.warnings)
    assert len(found.images) == 4 and ("lie outside 0 to 1" in said) == bool(asked) and asked in said
