"""Every column of the tables that `fedspill benchmark` makes of a run, declared once."""

from simulator.results.columns import COUNT, INTEGER, NUMBER, SECONDS, SHARE, TEXT, Column, Group, Table
from simulator.results.schema import LEAKAGE, leakage

OVER_SEEDS = Group("", "simulator/reports/benchmark_table.py")
EQUAL = Group("", "simulator/reports/equal_utility.py")
BOUND = Group(
    "What Hayes, Mahloujifar and Balle (2023) prove of reconstruction behind noise.",
    "simulator/reports/reconstruction_bound.py",
)

HALF_WIDTH = "half of the 95 % confidence interval over seeds (Student's t), of each row by itself"
LOW, HIGH = (f"{end} of the 95 % interval" for end in ("lower end", "upper end"))
CLUSTERS = (
    "two-stage bootstrap over seeds and the clients in them, or, where all clients have the same value, the exact one "
    "of Clopper and Pearson over clients"
)
PLAIN = "the same attack, told nothing, on the same seeds and clients without a defense"
WORST_EPSILON = (
    "against the row's threat model after that round, the largest of all seeds and of all clients that took part so "
    "far, attacked in that round or not"
)


COMPARED = (
    Column("leakage_low", NUMBER, f"{LOW}: {CLUSTERS}", OVER_SEEDS, SHARE),
    Column("leakage_high", NUMBER, HIGH, OVER_SEEDS, SHARE),
    Column("recovered_fraction_low", NUMBER, f"{LOW}: {CLUSTERS}", OVER_SEEDS, SHARE),
    Column("recovered_fraction_high", NUMBER, HIGH, OVER_SEEDS, SHARE),
    Column("recovered_difference", NUMBER, f"of `recovered_fraction` to {PLAIN}, mean of the pairs", OVER_SEEDS),
    Column("recovered_difference_low", NUMBER, f"{LOW} of that: {CLUSTERS}", OVER_SEEDS),
    Column("recovered_difference_high", NUMBER, f"{HIGH} of that", OVER_SEEDS),
    Column("recovered_pairs", COUNT, "pairs of clients that it is over, of seeds where clients are hidden", OVER_SEEDS),
    Column("recovered_p", NUMBER, "exact two-sided sign test of the seeds' mean differences; with n seeds at least "
           "2 / 2ⁿ, and empty where nothing differs", OVER_SEEDS),
    Column("test_accuracy_low", NUMBER, f"{LOW}: Student's t over seeds, cut at 0 and 1", OVER_SEEDS, SHARE),
    Column("test_accuracy_high", NUMBER, HIGH, OVER_SEEDS, SHARE),
    Column("accuracy_difference", NUMBER, "of `test_accuracy` to the same seeds without a defense, mean of the pairs",
           OVER_SEEDS),
    Column("accuracy_difference_ci95", NUMBER, "half of its 95 % confidence interval over pairs of seeds (Student's t)",
           OVER_SEEDS),
    Column("not_attacked_by", TEXT, "attacks without a result on the defense under that threat model, on any client or "
           "seed, and those of span, ntk and gradient_matching that did not run, each with the reason; empty where "
           "none is missing. That span refuses what shows it nothing is named only where another one is missing",
           OVER_SEEDS, title="not attacked by"),
    Column("prior_success", NUMBER, "κ: the largest share of public images that lie within 20 dB of a single one of "
           "them, itself included: the chance of the best guess that looks at nothing; of the first seed", BOUND,
           SHARE),
    Column("reconstruction_bound", NUMBER, "the most that any attacker recovers on average, whatever else he knows, "
           "given κ and the noise on all releases up to that round, for the client of all that took part so far who "
           "is bounded least; empty where no mechanism holds against the threat model", BOUND, SHARE, title="bound"),
)  # fmt: skip


def benchmark() -> Table:
    """The table of `fedspill benchmark`: what it always has, then every other averaged column of the leakage table."""
    return Table(
        "benchmark.csv",
        "One row per defense, attack, threat model, target and attacked round of `fedspill benchmark`: leakage, "
        "utility and ε are of that round. An adaptive attack without a label of its own goes by that of its twin; "
        "`history_all` is `history` of what is seen of all clients together. Scores of the leakage table are means "
        "over `seeds`, each seed the mean of its clients.",
        *leakage("defense attack threat_model adaptive"),
        Column("seeds", INTEGER, "that the means are over", OVER_SEEDS),
        *leakage("leakage"),
        Column("leakage_ci95", NUMBER, HALF_WIDTH, OVER_SEEDS, SHARE),
        *leakage("recovered_fraction"),
        Column("recovered_fraction_ci95", NUMBER, HALF_WIDTH, OVER_SEEDS, SHARE),
        *leakage("psnr_best psnr_mean membership_auc"),
        Column("test_accuracy", NUMBER, "after that round", OVER_SEEDS, SHARE, title="accuracy"),
        Column("test_accuracy_ci95", NUMBER, HALF_WIDTH, OVER_SEEDS, SHARE),
        Column("epsilon", NUMBER, WORST_EPSILON, OVER_SEEDS, title="ε", digits=1),
        Column("bytes", NUMBER, "bytes that a client sends in a round", OVER_SEEDS, title="kB", digits=0),
        Column("client_seconds", NUMBER, "that a client trains in a round", OVER_SEEDS, SECONDS),
        *leakage("target"),
        Column("failures", INTEGER, "attacks that failed or ran out of time; they have no score", OVER_SEEDS),
        *leakage("floor_recovered_fraction floor_leakage mean_image_leakage distilled_l2_median"),
        *leakage("delta privacy_unit privacy_against adjacency nominal_epsilon guarantees"),
        *leakage("round"),
        *COMPARED,
        *(column for column in LEAKAGE.columns.values() if column.averaged),
        printed="defense threat_model attack recovered_fraction held_fraction membership_auc test_accuracy epsilon "
        "bytes",
    )


AT_SETTING = (
    "test_accuracy accuracy_difference accuracy_difference_ci95 attack adaptive recovered_fraction "
    "recovered_fraction_low recovered_fraction_high held_fraction leakage seeds epsilon privacy_unit prior_success "
    "reconstruction_bound"
)
EQUAL_UTILITY = Table(
    "equal_utility.csv",
    "One row per family of `benchmark.strengths`, threat model and accepted loss of accuracy. The strongest setting of "
    "the family counts whose mean loss is no larger, a setting that was run; where there is none, the row is empty. "
    "Its other columns are those of benchmark.csv, of the attack that recovers most in the last attacked round.",
    Column("family", TEXT, "the defense that is swept over its strength", EQUAL),
    *leakage("threat_model"),
    Column("accepted_loss", NUMBER, "of test accuracy, to the same seeds without a defense", EQUAL, SHARE, "loss"),
    Column("setting", TEXT, "the row of benchmark.csv, FAMILY=VALUE", EQUAL),
    *(benchmark().columns[name] for name in AT_SETTING.split()),
    printed="family threat_model accepted_loss setting test_accuracy recovered_fraction held_fraction epsilon "
    "reconstruction_bound",
)
