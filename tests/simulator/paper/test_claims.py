"""Claims as data: what a rule makes of statistics, how they are printed, and the files they stand in."""

import math

import numpy as np
import pandas as pd
import pytest

from simulator.paper.claims import COMPARISONS, Claim, ClaimRule, Interval, Signs, compare, judge, load_claims
from simulator.paper.distilled import likeness_statistics, set_statistics, size_statistics
from simulator.paper.experiment import EXPERIMENTS
from simulator.paper.predicted_points import gap_statistics
from simulator.paper.reconstruction.curves import few_statistics, ntk_statistics, span_statistics, task_statistics
from simulator.paper.reconstruction.duals import accumulated_statistics, dual_statistics
from simulator.paper.reconstruction.gradient_sums import kkt_statistics, minibatch_statistics, step_statistics
from simulator.paper.sphere import recovery_statistics


def test_the_sign_test_by_hand():
    # with five tosses of a coin, 4 or 5 heads come up in 6 of 32 cases, 5 in 1
    assert Signs(4, 5).p_value == pytest.approx(6 / 32) and Signs(5, 5).p_value == pytest.approx(1 / 32)
    assert str(Signs.of(pd.Series([True, True, True, False]))) == "3 of 4"
    assert math.isnan(Signs(0, 0).share) and math.isnan(Signs(0, 0).p_value)


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ("rank >= 0.5", True),
        ("rank > 0.5", False),
        ("rank < other", True),
        ("by_size <= 2", True),
        ("by_size < 2", False),  # one of the two is 2
        ("by_size[20] <= 1", True),
        ("half.share >= 0.5", True),
        ("unknown > 0", None),
        ("gappy > 0", None),  # the one that was measured is above 0
        ("gappy > 3", False),
        ("empty > 0", None),
        ("left_out.share > 0", None),
    ],
)
def test_a_comparison_holds_for_every_entry_that_was_measured(comparison, holds):
    statistics = {"rank": 0.5, "other": 0.6, "by_size": pd.Series({20: 1.0, 40: 2.0}), "half": Signs(1, 2)}
    statistics |= {"unknown": math.nan, "gappy": [math.nan, 2.0], "empty": [], "left_out": None}
    assert compare(comparison, statistics) is holds


def test_a_claim_needs_all_comparisons_and_prints_its_statistics():
    rule = ClaimRule(claim="c", source="s", paper="p", measured="{by_size:.1f} in {signs}, {values:+d}", holds="x > 0")
    shown = {"by_size": pd.Series({20: 1.04, 40: 2.0}), "signs": Signs(2, 2), "values": [1, -2], "x": 1, "y": np.nan}
    measured = "20: 1.0, 40: 2.0 in 2 of 2, +1, -2; holds where x > 0"
    expected = Claim("c", "s", "p", measured, True, 0, 0, None, None, "not measured", False, "quick", None)
    assert judge({"key": rule}, shown) == [expected]
    both = {"key": rule.model_copy(update={"holds": ["x > 0", "y > 0"]})}
    assert judge(both, shown)[0].met is None and judge(both, shown | {"x": -1})[0].met is False
    assert judge({"key": rule}, shown | {"key": {"x": -1}})[0].met is False  # a statistic of this claim alone
    with pytest.raises(KeyError, match="x"):
        judge({"key": rule}, {name: value for name, value in shown.items() if name != "x"})


@pytest.mark.parametrize(
    ("values", "holds", "verdict"),
    [
        ([1, 1, 1], None, "undecided after 3 seeds (3 of 3, p = 0.12)"),  # 1/8
        ([1, 1, 1, 1, 1], True, "holds (5 of 5 seeds, p = 0.031)"),  # 1/32
        ([1, 1, 1, 1, -1], None, "undecided after 5 seeds (4 of 5, p = 0.19)"),  # 6/32
        ([1, 1, 1, 1, 1, 1, 1, -1], True, "holds (7 of 8 seeds, p = 0.035)"),  # 9/256
        ([-1, -1, -1, -1, -1], False, "does not hold (0 of 5 seeds, p = 0.031)"),
        ([-1], None, "undecided after 1 seed (0 of 1, p = 0.5)"),
        ([1, math.nan, 1], None, "undecided after 2 seeds (2 of 2, p = 0.25)"),  # of one seed nothing was left to judge
        ([], None, "not measured"),
    ],
)
def test_a_sign_test_over_seeds_decides(values, holds, verdict):
    rule = ClaimRule(claim="c", source="s", paper="p", measured="", holds="x > 0")
    (claim,) = judge({"key": rule}, {"x": 1}, {seed: {"x": x} for seed, x in enumerate(values)})
    assert (claim.holds, claim.verdict) == (holds, verdict) and claim.met


def test_an_identity_needs_no_sample():
    rule = ClaimRule(claim="c", source="s", paper="p", measured="", holds="x > 0", identity=True)
    claims = [judge({"key": rule}, {"x": x}, {0: {"x": 1}})[0] for x in (1, -1, None)]
    assert [(c.holds, c.verdict, c.n, c.identity) for c in claims] == [
        (True, "holds", None, True),
        (False, "does not hold", None, True),
        (None, "not measured", None, True),
    ]


def interval_of(holds, *seeds):
    rule = ClaimRule(claim="c", source="s", paper="p", measured="", holds=holds)
    return judge({"key": rule}, seeds[0], dict(enumerate(seeds)), "full")[0].interval


def test_intervals_by_hand():
    """Of 1, 2, 3 the mean is 2, its error 1/√3, and the quantile of t with two degrees of freedom 4.303."""
    low, high = (pytest.approx(2 + sign * 4.30265 / 3**0.5, rel=1e-4) for sign in (-1, 1))
    assert interval_of("x > 0", {"x": 1}, {"x": 2}, {"x": 3}) == Interval("x", 2, low, high, "t")
    pairs = [{"x": [value + 5, value], "y": 0.0} for value in (1, 2, 3)]
    assert interval_of(["x > y", "y < 1"], *pairs) == Interval("least x − y", 2, low, high, "t")
    assert interval_of("x < 9", *({"x": [value - 5, value]} for value in (1, 2, 3))).of == "largest x"
    # none of three: 1 − 0.025^(1/3)
    none = Interval("share of seeds", 0, 0, pytest.approx(0.7076, rel=1e-3), "exact")
    assert interval_of("x > 0", *[{"x": -1}] * 3) == none
    assert interval_of("s.share >= 1", *({"s": Signs(count, 2)} for count in (0, 1, 0))) == none
    left_out = [{"x": [], "y": -1}, {"x": [], "y": -2}]  # one comparison refutes, of the other nothing was measured
    assert interval_of(["x > 0", "y > 0"], *left_out).method == "exact"
    assert str(Interval("x", 2.0, 1.0, 3.14159, "t")) == "x 2 [1, 3.14]"


def test_files_inherit_replace_share_and_leave_out_claims():
    sources = {
        name: {rule.source for rule in load_claims(name).values()} for name in ("figure2", "figure22", "figure19")
    }
    assert sources["figure2"] == {"section 4, figure 2"} and sources["figure22"] == {"appendix J.5, figure 22"}
    assert "section 4, on the images of appendix J.2, figure 19" in sources["figure19"]
    assert list(load_claims("figure9")) == ["rkip", "random"]  # of table1's four claims one is replaced
    assert list(load_claims("figure20")) == ["classes", "kernel", "wider", "smaller"]
    own, shared = load_claims("figure3")["kernel"], load_claims("figure20")["kernel"]
    assert own.holds == shared.holds and shared.source == "appendix J.3, figure 20"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_rule_can_be_read(name):
    for rule in load_claims(name).values():
        for comparison in rule.holds:
            left, sign, _ = comparison.split()
            assert left[0].isalpha() and sign in COMPARISONS


def test_claims_about_duals_on_hand_made_tables(holds):
    image = {"num_private": 5, "width": 8, "dynamics": "standard", "seed": 0, "floor_l2": 9.0, "mean_image_l2": 10.0}
    data = pd.DataFrame({"alpha": [1.0, 2, 3, 4, 5], "l2": [9.0, 8, 5, 3, 1]}).assign(**image)
    assert holds("figure7", dual_statistics(data)) == [True, True]  # the two smallest: 8.5 > 0.9 * 9
    assert holds("figure7", dual_statistics(data.assign(l2=[1.0, 3, 5, 8, 9]))) == [False, False]
    frames = [data.assign(accumulated=data.alpha, finite_width=-data.alpha, infinite_width=[5.0, 1, 4, 2, 3])]
    frames.append(frames[0].assign(dynamics="linearized"))
    frames = [frame.assign(unexplained=missed) for frame, missed in zip(frames, (0.5, 1e-5), strict=True)]
    assert holds("figure11", accumulated_statistics(pd.concat(frames))) == [True, True, True, False]
    assert holds("figure11", accumulated_statistics(frames[0])) == [None, None, True, False]


def test_claims_about_tasks_and_single_steps_on_hand_made_tables(holds):
    settings = {"width": 8, "dynamics": "standard", "seed": 0}
    rows = {"task": ["odd_even", "classes"] * 2, "num_private": [10, 10, 20, 20], "l2_mean": [2.0, 1.0, 4.0, 3.0]}
    table = pd.DataFrame(rows).assign(**settings, kernel_distance=[0.2, 0.1, 0.3, 0.2])
    assert holds("figure20", task_statistics(table)) == [True, True, None, True]
    assert holds("figure20", task_statistics(table.assign(kernel_distance=[0.1, 0.2, 0.3, 0.1])))[0] is False
    images = {"rank": [1, 2, 1, 2], "found_dual": [1.0, 2, 3, 9], "residual": [2.0, 4, 6, 0], "unexplained": 1e-4}
    images |= {"identified_at_20_db": [True, True, True, False], "floor_l2_mean": 3.0, "recovered_fraction": 0.5}
    table = pd.DataFrame(images | {"l2_mean": [1.0, np.nan, 2.0, np.nan]})
    assert holds("one_step", step_statistics(table)) == [True, True, True]
    worse = table.assign(l2_mean=[1.0, np.nan, 4.0, np.nan], unexplained=[1e-4, 1e-4, 1e-2, 1e-2])
    worse["identified_at_20_db"] = [True, True, False, False]
    assert holds("one_step", step_statistics(worse)) == [False, False, None]


def test_claims_about_fine_tuning_on_hand_made_tables(holds):
    row = {
        "attack": "ntk",
        "trained": "head",
        "num_private": 2,
        "num_reconstructed": 2,
        "psnr_best": 21.0,
        "recovered": 1,
    }
    row |= {"l2_mean": 1.0, "floor_l2_mean": 2.0, "kernel_distance": 0.05, "membership_auc": 1.0}
    ntk = pd.DataFrame([row, row]).assign(weights="pretrained", public_images=5)
    assert holds("figure4", ntk_statistics(ntk.assign(nearer=[1, 2]))) == [True, True]
    worse = ntk.assign(kernel_distance=[0.05, 0.1], nearer=[0, 2])
    assert holds("figure4", ntk_statistics(worse)) == [False, False]
    both = pd.concat([ntk, ntk.assign(attack="span")])
    assert holds("finetune", span_statistics(both)) == [True, True, True]
    worse = both.assign(l2_mean=[1.0, 1.0, 1.0, 3.0], membership_auc=[1.0, 1.0, 0.98, 1.0])
    assert holds("finetune", span_statistics(worse)) == [True, False, False]


def test_claims_beside_the_kkt_attack_on_a_hand_made_table(holds):
    network = {"loss": ["mse", "cross_entropy"], "seed": 0, "num_private": 5, "width": 8}
    norms = network | {"initial": [4.0, 6.0], "delta": [1.0, 2.0], "unexplained": [0.1, 0.9]}
    pairs = [pd.DataFrame(norms | {"attack": a, "l2_mean": x}) for a, x in (("ntk", 1.0), ("kkt", 2.0))]
    table = pd.concat(pairs, ignore_index=True).assign(floor_l2_mean=3.0, rank=1)
    assert holds("appendix_a", kkt_statistics(table)) == [True, True, True]
    assert holds("appendix_a", kkt_statistics(table[table.loss == "mse"])) == [True, True, None]
    worse = table.assign(l2_mean=[1.0, 2.5, 2.0, 2.0], delta=6.0, unexplained=0.5)
    assert holds("appendix_a", kkt_statistics(worse)) == [False, False, False]


def test_claims_about_memory_and_predicted_points_on_hand_made_tables(holds):
    sizes = {"candidates": [100, 100, 1000, 1000], "method": ["Algorithm 2", "all at once"] * 2}
    compared = pd.DataFrame({"method": ["both compared"], "candidates": 4, "batch": 1, "error": 1e-15})
    for last, met in ((9.0, True), (20.0, False)):
        memory = pd.DataFrame(sizes | {"mib": [8.0, 8.0, last, 80.0], "batch": 100})
        assert holds("appendix_b", minibatch_statistics(pd.concat([compared, memory]))) == [True, met]
    gaps = {"gap": [0.0, 1.0], "seed": 0, "dual": [1e-9, 0.5], "predicted_dual": [0.0, 0.5], "others_dual": 0.5}
    points = pd.DataFrame(gaps | {"l2": [5.0, 1.0], "others_l2": 2.0, "floor_l2": 6.0})
    assert holds("appendix_c", gap_statistics(points)) == [True, True]
    assert holds("appendix_c", gap_statistics(points.assign(dual=[1e-9, 0.4], l2=[1.5, 1.0]))) == [False, False]


def test_claims_about_distillation_on_hand_made_tables(holds):
    accuracy = {("kip", "authors"): (0.9, 0.5, 0.6), ("kip", "limit"): (0.9, 0.6, 0.6)}
    accuracy |= {("kip", "width_matched"): (0.9, 0.8, 0.8), ("rkip", "authors"): (0.9, 0.88, 0.86)}
    accuracy |= {("rkip_finite", "authors"): (0.88, 0.85, 0.83)}
    accuracy |= {("random", "authors"): (0.7, 0.7, 0.7), ("full", "authors"): (0.95, 0.95, 0.95)}
    same = {"size": 20, "train": 200, "seed": 0}
    rows = [
        {"set": name, "kernel": kernel, **same, "learner": learner, "accuracy": value}
        for (name, kernel), values in accuracy.items()
        for learner, value in zip(("infinite_width", "standard", "linearized"), values, strict=True)
    ]
    table = pd.DataFrame(rows)
    assert set_statistics(table)["left_share"] == pytest.approx(0.1 / 0.3)
    assert holds("table1", set_statistics(table)) == [True, True, True, True]
    assert holds("table1", set_statistics(table[table.kernel == "authors"])) == [True, True, True, None]
    table.loc[(table.set != "full") & (table.learner != "infinite_width"), "accuracy"] = 0.84
    # rkip_finite is no better than random
    assert holds("table1", set_statistics(table)) == [False, False, False, False]
    sizes = [table.assign(size=size) for size in (10, 20)]
    sizes[1].loc[(table.set == "kip") & (table.learner != "infinite_width"), "accuracy"] = 0.5
    assert holds("figure8", size_statistics(pd.concat(sizes))) == [True, False, False]
    images = pd.DataFrame({"train": [20, 20, 200, 200], "seed": 0})
    alike = images.assign(nearest=[1.0, 0.95, 0.9, 0.3], average=[0.2, 0.2, 0.4, 0.4])
    assert holds("figure13", likeness_statistics(alike)) == [False, True, True]
    assert holds("figure13", likeness_statistics(alike.assign(nearest=[0.2, 0.3, 0.4, 0.5]))) == [True, False, True]


def test_claims_about_few_reconstructions_on_a_hand_made_table(holds):
    curve = {"rank": [1, 2] * 3, "num_private": [2, 2, 4, 4, 8, 8], "width": 8, "seed": 0, "floor_l2": 7.0}
    table = pd.DataFrame(curve | {"l2": [1.0, 1, 2, 2, 3, 3]})
    assert holds("distilled_curves", few_statistics(table)) == [True]
    worse = pd.concat([table, table.assign(rank=3, l2=-9.0)])  # ranks beyond the smallest set do not count
    assert holds("distilled_curves", few_statistics(worse)) == [True]
    assert holds("distilled_curves", few_statistics(table.assign(l2=1.0 / table.num_private))) == [False]


def test_claims_about_the_sphere_on_a_hand_made_trace(holds):
    trace = {"iteration": [0, 100], "num_private": 5, "seed": 0, "mmd": [1.0, 1e-4], "worst_l2": [1.5, 0.01]}
    table = pd.DataFrame(trace | {"mean_l2": [1.0, 0.005]})
    assert holds("theorem1", recovery_statistics(table)) == [True, True]
    assert holds("theorem1", recovery_statistics(table.assign(worst_l2=0.5))) == [False, True]
    assert holds("theorem1", recovery_statistics(table.assign(mmd=0.5))) == [False, False]  # no set gets there
