"""Every field of knowledge is documented with an example, and the example is one."""

import pytest

from attacks import Knowledge
from simulator.cli.inputs import parse_fields
from simulator.results.storage import make_knowledge

KNOWLEDGE_FIELDS = Knowledge.about()


@pytest.mark.parametrize("name", [name for name in KNOWLEDGE_FIELDS if name != "public_images"])
def test_the_example_can_be_told(name):
    given = make_knowledge(parse_fields([f"{name}={KNOWLEDGE_FIELDS[name].example}"])).given()
    assert list(given) == [name]


def test_several_numbers_need_no_brackets():
    assert make_knowledge(parse_fields(["pixel_range=-0.4,2.8"])).pixel_range == (-0.4, 2.8)
    assert make_knowledge(parse_fields(["pixel_mean=0.5, .4,0.3"])).pixel_mean == (0.5, 0.4, 0.3)
    assert make_knowledge(parse_fields(["pixel_std=0.5"])).pixel_std == (0.5,)
