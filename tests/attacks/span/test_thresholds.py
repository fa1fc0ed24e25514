from attacks.span import thresholds
from attacks.span.thresholds import FEATURES, FROZEN_BODY, Thresholds

GROUPS = [value for value in vars(thresholds).values() if isinstance(value, Thresholds)]


def test_every_constant_is_a_fact_under_a_name_of_its_own():
    facts = [key for group in GROUPS for key in group.facts()]
    constants = sum(len(type(group).__annotations__) for group in GROUPS)
    assert len(GROUPS) == 12 and len(facts) == len(set(facts)) >= constants
    assert all(isinstance(value, float) for group in GROUPS for value in group.facts().values())


def test_the_parts_of_a_value_are_facts_of_their_own():
    facts = FEATURES.facts() | FROZEN_BODY.facts()
    assert [facts[f"threshold_feature_span_directions_{i}"] for i in (1, 2, 3)] == [2, 3, 4]
    assert (facts["threshold_frozen_body_smooth_steps"], facts["threshold_frozen_body_smooth_rate"]) == (200, 0.05)
