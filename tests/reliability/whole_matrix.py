"""The whole column of the matrix in a deployment, clients, attacks and scores: `make matrix`. Minutes, and 2 GB of
memory: no part of the suite."""

from tests.reliability.deployment import deployed
from tests.reliability.faults import ATTACKS, CLIENTS, SCORES
from tests.reliability.test_deployment import FINE, OUTCOMES, run, start_of_a_client, unlike, unlike_attacks


def test_the_whole_matrix(tmp_path):
    """Flower notices a process that is gone after a minute."""
    faults = [fault.does for fault in CLIENTS]
    with deployed(tmp_path, nodes=1 + len(faults)) as deployment:
        rounds = [["", *faults], [""] * (1 + len(faults))]
        timeout = 90 + len(faults) * start_of_a_client()
        table, attacks = run(deployment, rounds, timeout, (*ATTACKS, *SCORES))
    assert unlike(table, 1, [FINE, *(OUTCOMES[name] for name in faults)]) == []
    assert unlike(table, 2, [FINE] * (1 + len(faults))) == []
    assert unlike_attacks(attacks, (*ATTACKS, *SCORES)) == []
