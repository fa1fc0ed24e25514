"""Every column of every table that fedspill writes of a run or a benchmark, declared once.

The ledger takes the order and the types of columns from here, the reports what they print, how, and what they average,
and docs/reference/tables.md is made of it (`docs.reference.tables`). A new metric is computed in one place and declared
here; a table with a column that is not declared is an error.
"""

from simulator.results import cell_texts as texts
from simulator.results.columns import (
    COUNT,
    DECIBEL,
    FLAG,
    INTEGER,
    JSON,
    L2,
    NUMBER,
    SECONDS,
    SHARE,
    TEXT,
    Column,
    Counts,
    Group,
    Table,
)

KEY = Group("What a row is about.", "simulator/evaluation/job.py")
OUTCOME = Group("How the attack went.", "simulator/evaluation/job.py")
RETURNED = Group("What the attack made of the update.", "simulator/evaluation/evaluator.py")
SCORES = Group(
    "How good the images are. Reconstructions are matched one to one to distinct private images, the closest pair "
    "first (Loo et al. 2024); private images equal pixel for pixel are matched as one and all counted. A "
    "private image without a reconstruction is scored against the mean public image.",
    "attacks/scoring/leakage.py",
)
FLOOR = Group(
    "The floor: what an attacker who knows nothing scores. Columns with the prefix `floor_` are of as many public "
    "images as the attack returned, drawn by the row's seed; those with `mean_image_` are of the mean of all public "
    "images in the place of every private one. `leakage_floor` is the larger of both leakages, and what stands in "
    "parentheses beside leakage on the screen, on the page and in captions.",
    "attacks/scoring/leakage.py",
)
CLASSES = Group(
    "The floor of an attacker who knows how many private images there are of each class, and nothing else: as many "
    "public images as the attack returned, by those counts. Empty where the classes of private and public images are "
    "not known.",
    "attacks/scoring/leakage.py",
)
BEYOND = Group(
    "What `recovered` alone would miss or overrate ([reading scores](../explanation/scores.md)): candidates "
    "that an attack holds and does not return, images that are there but for an offset, a gain, an augmentation or "
    "what an eye overlooks, the images most exposed.",
    "attacks/scoring/leakage.py",
)
NULL = Group(
    "The same reconstructions scored against other images: 99 sets of `num_private` images of the round's "
    "other clients and of the public pool, without those of the floor; each of the class of a private image, where "
    "classes are known. Empty where there are not as many of them. A p-value is (1 + the sets that score at "
    "least the row's value) / 100: 0.01 or more; 0.5 or 1 is no better than chance.",
    "attacks/scoring/null.py",
)
MEMBERSHIP = Group(
    "How well the update tells the private images from up to 1,000 public ones (`fedspill member`). `_low`, `_high`: "
    "95 % confidence interval.",
    "simulator/evaluation/evaluator.py",
)
TOLD = Group(
    "Which candidate images took part, where an audit is given some, and non-members to calibrate on "
    "(`--candidates`, `--public`). No truth is needed.",
    "attacks/calibration.py",
)
TOLD_CLASSES = Group(
    "How many private images there are of each class, by the update of the last layer. Empty unless the adversary "
    "knows the learning rate and the steps of local training.",
    "attacks/update/labels.py",
)
UPDATE = Group(
    "How large the update of the last round is, and how much it can hold.", "simulator/evaluation/evaluator.py"
)
REGIME = Group(
    "How linear the network was along the last round's update ([why an attack works](../explanation/diagnose.md)): on "
    "the private images, and, as `attacker_…`, as far as an adversary can know it.",
    "simulator/evaluation/evaluator.py",
)

PRIVACY = Group(
    "What differential privacy promises ([what an ε means](../explanation/privacy.md)): of all rounds so far, for the "
    "client of the row, or the worst of its clients, against the adversary of the row. Where a chain has several "
    "mechanisms, the columns show the first of the chain that holds against that adversary, and `guarantees` and "
    "`detail` all of them; empty: none holds.",
    "simulator/results/privacy.py",
)

PAIR = Group("", "simulator/evaluation/evaluator.py")
GLOBAL = Group("", "simulator/run/federation.py")
REPLY = Group("", "simulator/adversary")
CANDIDATE = Group("", "simulator/evaluation/candidate_images.py")
LAYER = Group("", "attacks/kernel/regime.py")

LEAKAGE = Table(
    "leakage.csv, leakage.parquet",
    "One row per round, client, threat model, attack, defense, seed and target.",
    Column("round", INTEGER, "round of the federation, from 1", KEY),
    Column("client", INTEGER, "the client's number: in a run its partition id, in an audit the place in the order in "
           "which the server first saw clients, from 0 (recording.json: its node id and name); −1 for the union of the "
           "round's clients (observer, secure aggregation)", KEY, text=texts.client),
    Column("threat_model", TEXT, "who sees what. server: what each client returned; observer: the global models before "
           "and after the round; history and server_history: all rounds so far", KEY, title="threat"),
    Column("attack", TEXT, "the attack's label", KEY),
    Column("defense", TEXT, "the chain of defenses, `a+b`, or none", KEY),
    Column("seed", INTEGER, "of the scenario", KEY),
    Column("target", TEXT, "private: the clients' images; distilled: what a defense made them train on instead (both "
           "are scored)", KEY),
    Column("status", TEXT, "ok, failed, skipped or timeout", OUTCOME),
    Column("detail", TEXT, "the reason, warnings of the attack and notes on the scores", OUTCOME),
    Column("num_private", COUNT, "private images that there are; where nobody knows them, as many as the adversary was "
           "told", RETURNED),
    Column("num_inferred", COUNT, "private images that the attack counted in the update", RETURNED),
    Column("num_reconstructed", COUNT, "images that the attack returned", RETURNED),
    Column("l2_min", NUMBER, "smallest distance of a pair", SCORES, L2),
    Column("l2_median", NUMBER, "median distance over private images", SCORES, L2, title="L2 median", spare=3),
    Column("l2_mean", NUMBER, "mean distance over private images", SCORES, L2),
    Column("psnr_best", NUMBER, "largest of a pair", SCORES, DECIBEL, averaged=True),
    Column("psnr_mean", NUMBER, "mean over private images", SCORES, DECIBEL, title="PSNR mean", digits=1,
           averaged=True, spare=2),
    Column("ssim_mean", NUMBER, "mean over private images", SCORES),
    Column("recovered", COUNT, "private images with at least 20 dB and *identified*: the reconstruction is nearer to "
           "its private image than to any other of the pool, which is the public pool and all private images of the "
           "round. An image of the pool that it copies exactly is left out", SCORES, text=texts.recovered,
           legend="PSNR of at least 20 dB and nearer to its private image than to any other of the pool.",
           counts=Counts(0)),
    Column("recovered_fraction", NUMBER, "`recovered` over `num_private`", SCORES, SHARE, title="recovered",
           averaged=True, text=texts.interval),
    Column("floor_l2_median", NUMBER, "`l2_median` of the floor", FLOOR, L2),
    Column("floor_psnr_mean", NUMBER, "`psnr_mean` of the floor", FLOOR, DECIBEL),
    Column("floor_recovered_fraction", NUMBER, "`recovered_fraction` of the floor", FLOOR, SHARE,
           averaged=True),
    Column("leakage", NUMBER, "mean over private images of max(0, 1 − L2 / `floor_l2`), with the floor's "
           "distance to the same image; 1 is exact, 0 for an attack that returns nothing", SCORES, SHARE,
           averaged=True, text=texts.beside_floor, legend="1 is exact."),
    Column("relative_residual", NUMBER, "what the attack itself is left with: ‖Δθ − Σ α ∇f‖ / ‖Δθ‖ for `ntk`, its own "
           "measure for others ([the attacks](../explanation/attacks.md))", RETURNED, "share of ‖Δθ‖"),
    Column("kernel_distance", NUMBER, "between the kernels before and after, on the private images", REGIME, SHARE),
    Column("delta_l2", NUMBER, "‖Δθ‖₂", UPDATE, "parameters"),
    Column("delta_linf", NUMBER, "‖Δθ‖_∞", UPDATE, "parameters"),
    Column("knowledge", TEXT, "what the attack was granted beyond the checkpoints; images as their number", OUTCOME,
           JSON),
    Column("seconds", NUMBER, "of the attack, without scoring; until it ended, where it did not succeed", OUTCOME,
           SECONDS),
    Column("floor_leakage", NUMBER, "`leakage` of another draw of public images", FLOOR, SHARE, averaged=True),
    Column("hungarian_psnr_mean", NUMBER, "`psnr_mean` with the matching of least total squared error instead", SCORES,
           DECIBEL),
    Column("floor_hungarian_psnr_mean", NUMBER, "`hungarian_psnr_mean` of the floor", FLOOR, DECIBEL),
    Column("membership_auc", NUMBER, "area under the ROC curve; 0.5: private images are not told from public ones",
           MEMBERSHIP, SHARE, title="AUC", averaged=True,
           legend="how well the update tells private images from public ones (0.5: not at all)."),
    Column("membership_tpr", NUMBER, "true-positive rate at a false-positive rate of 0.1 %; empty with fewer than "
           "1,000 public images, which could not tell that rate", MEMBERSHIP, SHARE),
    Column("adaptive", FLAG, "whether the attack was granted the defense in force", OUTCOME),
    Column("distilled_l2_median", NUMBER, "median distance of the images that a defense made clients train on to the "
           "private ones, matched as above", SCORES, L2, averaged=True),
    Column("linearization_error", NUMBER, "‖f − f_lin‖ / ‖f − f_θ₀‖ on the private images", REGIME, "share"),
    Column("hessian_norm", NUMBER, "largest ‖H‖₂ of the network's output on the private images", REGIME),
    Column("unexplained", NUMBER, "share of Δθ beyond the private images' gradients", REGIME, SHARE),
    Column("verdict", TEXT, "whether the update is in the kernel regime, in words", REGIME),
    Column("layer_ranks", TEXT, "{layer: [rank, gap]}", REGIME, JSON),
    Column("attacker_images", TEXT, "what the `attacker_…` columns are measured on: reconstructed or public images",
           REGIME),
    Column("attacker_kernel_distance", NUMBER, "`kernel_distance` on those", REGIME, SHARE),
    Column("attacker_linearization_error", NUMBER, "`linearization_error` on those", REGIME, "share"),
    Column("attacker_hessian_norm", NUMBER, "`hessian_norm` on those", REGIME),
    Column("attacker_verdict", TEXT, "`verdict` on those", REGIME),
    Column("mean_image_l2_median", NUMBER, "`l2_median` of the mean public image", FLOOR, L2),
    Column("mean_image_psnr_mean", NUMBER, "`psnr_mean` of the mean public image", FLOOR, DECIBEL),
    Column("mean_image_leakage", NUMBER, "`leakage` of the mean public image", FLOOR, SHARE, averaged=True),
    Column("epsilon", NUMBER, "ε: likelihoods may differ by a factor of up to exp(ε)", PRIVACY, title="ε",
           digits=1),
    Column("delta", NUMBER, "δ, beside which ε holds", PRIVACY),
    Column("privacy_unit", TEXT, "what is hidden: one image (`record`) or all that a client does (`client`)", PRIVACY),
    Column("privacy_against", TEXT, "from whom: `server`, `observer` or `both`", PRIVACY),
    Column("adjacency", TEXT, "how neighbouring data differ: one unit more or less (`add_remove`), or another one in "
           "its place (`replace_one`)", PRIVACY),
    Column("nominal_epsilon", NUMBER, "what the mechanism's own formula says, as Flower's, where that is "
           "another number", PRIVACY),
    Column("guarantees", TEXT, "all guarantees of the chain, whoever they hold against", PRIVACY, JSON),
    Column("num_held", COUNT, "candidates that the attack has and did not return", BEYOND),
    Column("held", COUNT, "private images that any candidate recovers, returned or not, each candidate used once; "
           "never below `recovered`", BEYOND, spare=13,
           legend="recovered, counting images that the attack found, but was not sure enough of to return.",
           counts=Counts(4, "counting those that the attack held back", "of them returned")),
    Column("held_fraction", NUMBER, "`held` over `num_private`", BEYOND, SHARE, title="held", averaged=True,
           spare=13),
    Column("precision", NUMBER, "share of the returned images that recover a private image, be it one that another "
           "returned image recovers too; empty where nothing was returned", BEYOND, SHARE, averaged=True, spare=1,
           legend="share of the returned images that recover one."),
    Column("recovered_affine", COUNT, "`recovered` after the best offset and positive gain per image and channel, "
           "identified by the share of an image's variance that is left; never below `recovered`", BEYOND,
           title="relit", spare=12, legend="recovered up to brightness and contrast.",
           counts=Counts(2, "up to brightness and contrast")),
    Column("recovered_affine_fraction", NUMBER, "`recovered_affine` over `num_private`", BEYOND, SHARE, averaged=True),
    Column("floor_recovered_affine_fraction", NUMBER, "`recovered_affine_fraction` of the floor",
           FLOOR, SHARE, averaged=True),
    Column("recovered_group", COUNT, "`recovered` up to the shifts and flips that the clients augment by; never below "
           "`recovered`, empty where clients do not augment", BEYOND, title="group", spare=11,
           legend="recovered up to the clients' augmentations.",
           counts=Counts(1, "up to the shifts and flips that clients augment by")),
    Column("recovered_group_fraction", NUMBER, "`recovered_group` over `num_private`", BEYOND, SHARE, averaged=True),
    Column("floor_recovered_group_fraction", NUMBER, "`recovered_group_fraction` of the floor",
           FLOOR, SHARE, averaged=True),
    Column("distilled_copies_fraction", NUMBER, "share of the private images that the distilled set itself recovers: "
           "what it gives away to whoever sees it", BEYOND, SHARE, averaged=True),
    Column("l2_best_exposed", NUMBER, "distance of the most exposed private image to its nearest candidate, returned "
           "or held: of the image where it is smallest relative to `floor_l2`", BEYOND, L2, averaged=True),
    Column("leakage_p95", NUMBER, "95th percentile of the values over private images whose mean is `leakage`; of fewer "
           "than 20 the largest", BEYOND, SHARE, averaged=True),
    Column("null_recovered", NUMBER, "`recovered` against other images, mean of the sets", NULL),
    Column("null_recovered_fraction", NUMBER, "`null_recovered` over `num_private`", NULL, SHARE, averaged=True),
    Column("null_leakage", NUMBER, "`leakage` against other images, mean of the sets", NULL, SHARE, averaged=True),
    Column("null_p", NUMBER, "p-value of `leakage`", NULL, SHARE),
    Column("membership_auc_low", NUMBER, "of `membership_auc` (Newcombe 2006, method 5)", MEMBERSHIP, SHARE),
    Column("membership_auc_high", NUMBER, "of `membership_auc`", MEMBERSHIP, SHARE),
    Column("membership_tpr_low", NUMBER, "of `membership_tpr` (Clopper and Pearson 1934)", MEMBERSHIP, SHARE),
    Column("membership_tpr_high", NUMBER, "of `membership_tpr`", MEMBERSHIP, SHARE),
    Column("membership_tpr_1pct", NUMBER, "true-positive rate at a false-positive rate of 1 %; empty with fewer than "
           "100 public images", MEMBERSHIP, SHARE),
    Column("membership_tpr_1pct_low", NUMBER, "of `membership_tpr_1pct`", MEMBERSHIP, SHARE),
    Column("membership_tpr_1pct_high", NUMBER, "of `membership_tpr_1pct`", MEMBERSHIP, SHARE),
    Column("membership_candidates", COUNT, "different candidate images that an audit was given (`--candidates`)", TOLD),
    Column("membership_told", COUNT, "of those, predicted members: with a score above `membership_threshold`", TOLD,
           title="stand out", text=texts.members,
           legend="of the candidates, at the false-positive rate of the verdict, which says where chance does not "
           "explain as many."),
    Column("membership_fpr", NUMBER, "false-positive rate that the threshold keeps: 0.1 %, 1 % or 10 %, the strictest "
           "that so many images held out can keep", TOLD, SHARE),
    Column("membership_threshold", NUMBER, "a score, −log ρ ([membership.csv](#membershipcsv-membershipcsv))", TOLD),
    Column("membership_p", NUMBER, "p-value of `membership_told` if no candidate were a member", TOLD, SHARE),
    Column("num_vouched", COUNT, "images returned that passed the attack's own test; empty for attacks "
           "that return whatever they find", RETURNED),
    Column("recognized", COUNT, "`recovered`, or private images that an eye would know: more alike than "
           "`recognized_threshold` to a returned image that is mirrored, shifted by up to 2 pixels, of another "
           "brightness or contrast, a negative included, on smoothed images, and *identified* by that likeness; never "
           "below `recovered`", BEYOND, spare=14,
           legend="recovered, or alike up to what an eye overlooks (docs/explanation/scores.md).",
           counts=Counts(3, "up to what an eye overlooks (`recognized`)")),
    Column("recognized_fraction", NUMBER, "`recognized` over `num_private`", BEYOND, SHARE, title="recognized",
           averaged=True),
    Column("floor_recognized_fraction", NUMBER, "`recognized_fraction` of the floor", FLOOR, SHARE, averaged=True),
    Column("recognized_threshold", NUMBER, "correlation: as many public images as were returned exceed it for "
           "at most 1 in 100 private images; 1 where none was, empty where the public images are too few to tell",
           BEYOND, SHARE),
    Column("class_floor_leakage", NUMBER, "`leakage` of those", CLASSES, SHARE, averaged=True),
    Column("class_floor_recovered_fraction", NUMBER, "`recovered_fraction` of those", CLASSES, SHARE, averaged=True),
    Column("class_floor_recognized_fraction", NUMBER, "`recognized_fraction` of those", CLASSES, SHARE, averaged=True),
    *(Column(f"null_{name}_p", NUMBER, f"p-value of `{name}`", NULL, SHARE)
      for name in ("recovered", "held", "recovered_affine", "recovered_group", "recognized")),
    Column("leakage_floor", NUMBER, "the larger of `floor_leakage` and `mean_image_leakage`: the floor that is shown "
           "in parentheses beside `leakage`", FLOOR, SHARE),
    Column("num_features", COUNT, "private images whose features (what the network makes of an image) passed the "
           "attack's test, returned as images or not; empty for attacks that look for no features", RETURNED,
           title="features", spare=13, legend="private images whose features (what the network makes of an image) the "
           "attack has."),
    Column("capacity", COUNT, "images that the ranks of the update admit, for attacks that read row spaces, as `span` "
           "([what it bounds](../explanation/span.md#how-many-images-an-update-can-hold)); no promise", UPDATE),
    Column("class_counts", TEXT, "{class: images}", TOLD_CLASSES, JSON),
    Column("class_error", NUMBER, "share of the private images that `class_counts` has in a wrong class", TOLD_CLASSES,
           SHARE),
    Column("floor_class_error", NUMBER, "`class_error` of equal counts", TOLD_CLASSES, SHARE),
    Column("determined", NUMBER, "how many numbers of the updates attacked, but for those that are 0, there are for "
           "each pixel of the images returned: below 1 images of nobody explain them as well", RETURNED),
    Column("num_inferred_guessed", COUNT, "1 if `num_inferred` is a guess, as the spectrum of the update has no clear "
           "gap or the attack returned nothing; else 0", RETURNED),
    printed="round client threat_model attack recovered num_features recognized held recovered_affine recovered_group "
    "precision leakage l2_median psnr_mean membership_auc membership_told",
)  # fmt: skip


def leakage(names: str) -> list[Column]:
    """Return columns that another table shares with the leakage table."""
    return [LEAKAGE.columns[name] for name in names.split()]


OF_GUARANTEE = leakage("delta privacy_unit privacy_against adjacency nominal_epsilon guarantees")


SAMPLES = Table(
    "samples.parquet",
    "One row per private image.",
    *leakage("round client threat_model attack defense seed target"),
    Column("image", INTEGER, "index in the private set, clients in order", PAIR),
    Column("l2", NUMBER, "distance to its reconstruction", PAIR, L2),
    Column("psnr", NUMBER, "of that pair", PAIR, DECIBEL),
    Column("ssim", NUMBER, "of that pair", PAIR),
    Column("dual", NUMBER, "the reconstruction's largest |α|, where the attack has duals", PAIR),
    Column("identified", FLAG, "whether the reconstruction is nearer to it than to any other of the pool", PAIR),
    Column("match", INTEGER, "index of its reconstruction (`reconstructions/`), −1 where none was left", PAIR),
    Column("floor_l2", NUMBER, "distance of the matched public image of the floor", PAIR, L2),
    Column("mean_image_l2", NUMBER, "distance of the mean public image", PAIR, L2),
)  # fmt: skip

UTILITY = Table(
    "utility.parquet",
    "One row per round; round 0 is the model before any training.",
    *leakage("round defense seed"),
    Column("test_accuracy", NUMBER, "of the global model", GLOBAL, SHARE),
    Column("test_loss", NUMBER, "of the global model", GLOBAL),
    Column("client_loss", NUMBER, "mean of the clients' last losses", GLOBAL),
    Column("clients", INTEGER, "that replied", GLOBAL),
    Column("epsilon", NUMBER, "largest of all clients so far, of the first mechanism of the chain, whoever it holds "
           "against; empty where nobody took part", GLOBAL),
    *OF_GUARANTEE,
)  # fmt: skip

CLIENTS = Table(
    "clients.parquet",
    "One row per client asked in a round.",
    *leakage("round client defense seed"),
    Column("status", TEXT, "ok, failed or timeout", REPLY),
    Column("detail", TEXT, "why it failed", REPLY),
    Column("num_examples", COUNT, "images trained on", REPLY),
    Column("steps", COUNT, "of training", REPLY),
    Column("first_loss", NUMBER, "of the first step", REPLY),
    Column("last_loss", NUMBER, "of the last step", REPLY),
    Column("seconds", NUMBER, "of training", REPLY, SECONDS),
    Column("worker", TEXT, "ray-worker, or local outside of Ray", REPLY),
    Column("pid", COUNT, "process that it ran in", REPLY),
    Column("gpu_ids", TEXT, "GPUs that Ray gave it", REPLY),
    Column("device", TEXT, "device that it trained on", REPLY),
    Column("epsilon", NUMBER, "spent so far, by the first mechanism of the chain", REPLY),
    Column("bytes", NUMBER, "bytes sent to the server", REPLY),
    *OF_GUARANTEE,
)

CANDIDATES = Table(
    "membership.csv, membership/*.csv",
    "One row per candidate image of `fedspill member`, or of one round, client and threat model of an audit.",
    Column("index", INTEGER, "of the candidate in its file", CANDIDATE),
    Column("residual", NUMBER, "ρ: share of it that lies outside the span of the update", CANDIDATE, SHARE),
    Column("score", NUMBER, "−log ρ: higher for images that were trained on", CANDIDATE),
    Column("member", COUNT, "1: predicted member, with a score above the threshold that `--public` calibrates; 0: "
           "not; empty where nothing calibrates it", CANDIDATE),
)  # fmt: skip

LAYERS = Table(
    "layers.csv",
    "One row per trained layer of `fedspill diagnose`, of its update [ΔW | Δb].",
    Column("name", TEXT, "of the layer in the model", LAYER),
    Column("rows", INTEGER, "outputs of the layer", LAYER),
    Column("columns", INTEGER, "inputs of the layer, and one for its bias", LAYER),
    Column("l2", NUMBER, "norm of all entries", LAYER, "parameters"),
    Column("linf", NUMBER, "largest entry", LAYER, "parameters"),
    Column("rank", INTEGER, "singular values above the noise floor", LAYER),
    Column("gap", NUMBER, "σ_rank over the next singular value; empty where there is none", LAYER),
    Column("clear", FLAG, "whether the gap is wide enough to trust the rank", LAYER),
)


OVER_SEEDS = Group("", "simulator/reports/benchmark_table.py")
EQUAL = Group("", "simulator/reports/benchmark_table.py")
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
    Column("recovered_pairs", COUNT, "client pairs averaged; seed pairs where clients are hidden", OVER_SEEDS),
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
           "none is missing. Where span ran and returned nothing, that is named only if another one is missing, too",
           OVER_SEEDS, title="not attacked by"),
    Column("prior_success", NUMBER, "κ: the largest share of public images that lie within 20 dB of a single one of "
           "them, itself included: the chance of the best guess that looks at nothing; of the first seed", BOUND,
           SHARE),
    Column("reconstruction_bound", NUMBER, "the most that any attacker recovers on average, whatever else he knows, "
           "given κ and the noise on all releases up to that round, for the client of all that took part so far who "
           "is bounded least; empty where no mechanism holds against the threat model", BOUND, SHARE, title="bound",
           spare=11),
)  # fmt: skip


BYTES = "bytes that a client sends in a round"


def benchmark() -> Table:
    """Return the table of `fedspill benchmark`: its own columns, then every averaged column of the leakage table."""
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
        Column("test_accuracy", NUMBER, "after that round", OVER_SEEDS, SHARE, title="accuracy", text=texts.interval),
        Column("test_accuracy_ci95", NUMBER, HALF_WIDTH, OVER_SEEDS, SHARE),
        Column("epsilon", NUMBER, WORST_EPSILON, OVER_SEEDS, title="ε", digits=1, text=texts.epsilon),
        Column("bytes", NUMBER, BYTES, OVER_SEEDS, title="kB", text=texts.thousands, spare=10),
        Column("client_seconds", NUMBER, "that a client trains in a round", OVER_SEEDS, SECONDS),
        *leakage("target"),
        Column("failures", INTEGER, "attacks that failed or ran out of time; they have no score", OVER_SEEDS),
        *leakage("floor_recovered_fraction floor_leakage mean_image_leakage distilled_l2_median"),
        *OF_GUARANTEE,
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
    "One row per family of `benchmark.strengths`, threat model and accepted loss of accuracy. It shows the "
    "strongest setting that was run and whose mean loss is no larger; without one, it is empty. "
    "Its other columns are those of benchmark.csv, of the attack that has most images in the last attacked round.",
    Column("family", TEXT, "the defense that is swept over its strength", EQUAL),
    *leakage("threat_model"),
    Column("accepted_loss", NUMBER, "of test accuracy, to the same seeds without a defense", EQUAL, SHARE, "loss"),
    Column("setting", TEXT, "the row of benchmark.csv, FAMILY=VALUE", EQUAL, text=texts.setting),
    *(benchmark().columns[name] for name in AT_SETTING.split()),
    printed="family threat_model accepted_loss setting test_accuracy recovered_fraction held_fraction epsilon "
    "reconstruction_bound",
)
