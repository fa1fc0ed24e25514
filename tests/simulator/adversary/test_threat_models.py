"""Who looks at what: the rule of every combination of threat models, written out."""

import pytest

from simulator.results.threat_models import SECURE_AGGREGATION, CheckpointSource, all_views, history

RETURNED, SUM, GLOBAL = CheckpointSource.RETURNED, CheckpointSource.SUM, CheckpointSource.GLOBAL


def seen(named, hides_clients):
    """(threat model, source, whether over all rounds) of what the federation shows."""
    views = all_views(named, hides_clients)
    return {(view.threat_model, view.source, view.all_rounds) for view in views if view.hidden_by is None}


@pytest.mark.parametrize(
    ("named", "plain", "aggregated"),
    [
        (["server"], {("server", RETURNED, False)}, {("server", SUM, False)}),
        (["observer"], {("observer", GLOBAL, False)}, {("observer", GLOBAL, False)}),
        (["history"], {("history", RETURNED, True)}, {("history", SUM, True)}),
        (
            ["server", "history"],
            {("server", RETURNED, False), ("history", RETURNED, True)},
            {("server", SUM, False), ("history", SUM, True)},
        ),
        (
            ["observer", "history"],
            {("observer", GLOBAL, False), ("history", GLOBAL, True)},
            {("observer", GLOBAL, False), ("history", GLOBAL, True)},
        ),
        (
            ["history", "observer", "server"],
            {
                ("server", RETURNED, False),
                ("observer", GLOBAL, False),
                ("history", RETURNED, True),
                ("history", GLOBAL, True),
            },
            {("server", SUM, False), ("observer", GLOBAL, False), ("history", SUM, True)},
        ),
    ],
)
def test_who_looks_at_what(named, plain, aggregated):
    assert seen(named, hides_clients=False) == plain
    assert seen(named, hides_clients=True) == aggregated


@pytest.mark.parametrize(
    ("named", "hidden"),
    [
        (["server"], ["server"]),
        (["observer", "history"], []),
        (["server", "observer", "history"], ["server", "history"]),
    ],
)
def test_secure_aggregation_hides_single_clients_and_says_so(named, hidden):
    views = [view for view in all_views(named, hides_clients=True) if view.source is RETURNED]
    assert [view.threat_model for view in views] == hidden
    assert all(view.hidden_by == SECURE_AGGREGATION for view in views)


def test_a_history_has_one_view_of_a_subject():
    for hides_clients in (False, True):
        views = history(["server", "observer", "history"], hides_clients)
        assert len({view.source.of_all for view in views}) == len(views)
