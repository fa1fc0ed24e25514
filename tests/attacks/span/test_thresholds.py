from attacks.span import thresholds
from attacks.span.thresholds import FEATURE, FROZEN_BODY, Thresholds, constants_of

GROUPS = [value for value in vars(thresholds).values() if isinstance(value, type) and value.__base__ is Thresholds]


def test_every_constant_is_a_fact_under_a_name_of_its_own():
    facts = constants_of(*GROUPS)
    constants = sum(len(group.__annotations__) for group in GROUPS)
    assert len(GROUPS) == 26 and len(facts) == sum(len(constants_of(group)) for group in GROUPS) >= constants
    assert all(isinstance(value, float) for value in facts.values())


def test_the_parts_of_a_value_are_facts_of_their_own():
    facts = constants_of(FEATURE, FROZEN_BODY)
    assert [facts[f"threshold_feature_span_directions_{i}"] for i in (1, 2, 3)] == [2, 3, 4]
    assert (facts["threshold_frozen_body_smooth_steps"], facts["threshold_frozen_body_smooth_rate"]) == (200, 0.05)
