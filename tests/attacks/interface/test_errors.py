import pytest

from attacks.interface.errors import did_you_mean

STRATEGIES = ["Bulyan", "FedAdam", "FedAvg", "FedMedian", "FedYogi", "Krum"]


@pytest.mark.parametrize(
    ("word", "known", "says"),
    [
        ("nkt", ["kkt", "ntk", "span"], "; did you mean 'ntk'?"),
        ("FedAvgg", STRATEGIES, "; did you mean 'FedAvg'?"),
        ("lr", ["batch_size", "learning_rate", "loss"], "; did you mean 'learning_rate'?"),
        (
            "dp",
            ["central_dp", "clipping", "dp_sgd", "local_dp"],
            "; did you mean 'central_dp', 'dp_sgd' or 'local_dp'?",
        ),
        ("FedFoo", STRATEGIES, f" (known: {', '.join(STRATEGIES)})"),  # nothing of it is near but the beginning
        ("x", ["proxy", "max"], " (known: proxy, max)"),
    ],
)
def test_a_wrong_name_leads_to_what_was_meant(word, known, says):
    assert did_you_mean(word, known) == says
