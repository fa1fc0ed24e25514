"""Every tuned constant of the span attack, in groups by the test or the search that uses it.

A group is a class without instances. Those that took part in a run are among the facts of its result, as
`threshold_<group>_<name>`. A share has no unit: it is relative to what its comment names.

All were chosen by hand, with the truth of some clients in view: docs/records/span_constants.md names these, and what
halving and doubling changes. What changed more than another seed of the attack does says [matters] and which way.
"""

from dataclasses import dataclass

from attacks.base import CONSTANT, Facts


@dataclass(frozen=True)
class Descent:
    """One run of Adam: steps, and the step size at which its half cosine starts."""

    steps: int
    rate: float


class Thresholds:
    """A group of constants."""


def constants_of(*groups: type[Thresholds]) -> Facts:
    """Return every constant of the groups as `threshold_<group>_<name>`. The parts of a value that has several are
    counted from 1, those of a `Descent` are its steps and its rate."""
    found: Facts = {}
    for group in groups:
        for name in group.__annotations__:
            key, value = f"{CONSTANT}{group.__name__.lower()}_{name}", getattr(group, name)
            if isinstance(value, Descent):
                found |= {f"{key}_steps": float(value.steps), f"{key}_rate": value.rate}
            elif isinstance(value, tuple):
                found |= {f"{key}_{i}": float(part) for i, part in enumerate(value, 1)}
            else:
                found[key] = float(value)
    return found


class EVIDENCE(Thresholds):
    """What the first two layers' updates have to show (`attacks.span.evidence`, `attacks.span.variants.pixels`).

    "Outside" is ‖Δ − Δ_N‖ / ‖Δ‖ of the first layer's update: what N directions leave out. It is about 1e-5 or
    less for SGD in float32, and else about the relative size of the noise that was added.
    """

    decay_sought_above: float = 1e-4  # outside: from here on weight decay is looked for
    noisy_above: float = 1e-3  # outside: from here on rounding no longer explains it and images are less exact
    refused_above: float = 0.1  # outside: from here on the update is no sum over few images
    clear_gap: float = 1.5  # σ_N / σ_N+1 above which a noisy update leaves no doubt about N
    rank_exhausted: float = 0.8  # share of the rank that the pixels allow from which N is a lower bound only
    shared_images: float = 0.9  # share of all rounds' images that one round has to show, or clients took turns
    # [matters] half loses most images, twice lets strays in
    directions_per_image: float = 4.0  # second layer's directions per image: its features move during training
    directions_in_noise: float = 2.0  # the least of them per image where noise hides the weaker ones
    directions_needed: float = 1.2  # directions per image below which ρ cannot hold
    # [matters] half loses images of narrow networks, where it is the bound that holds
    directions_of_width: float = 0.4  # share of the width: more directions fit any image
    entries_left_out: float = 0.05  # share of zeros beside rows and columns of zeros: entries were left out
    # chosen on the largest tenth and fifth of the entries of digits' updates (N = 20), where wrong images had zeros
    left_out_rank: float = 0.5  # share of the highest rank from which those zeros are not black pixels of few images
    # of the mean image's length: an error of float32's rounding is 1e-7, and one of noise stays unseen by ρ
    batch_mean_error: float = 1e-3  # the most that the running mean may leave open of the mean of a batch
    # both chosen on clients of MNIST and CIFAR-10 with 1 to 400 images, by SGD with and without noise and by Adam
    flat_floor: float = 0.85  # share of a flat floor's lower quartile: 0.95 and more after SGD, less after Adam
    even_entries: float = 0.75  # mean over root mean square of the entries: 0.76 to 1 where Adam exhausts the rank
    # The update of one image always has full rank; adaptive steps leave the signs. Chosen on 31 such clients (tricks,
    # seeds 9000 to 9059: 999 of 1,000 pixels and more) and MNIST from -1 to 1 under SGD (1 image in 10,000 has as many)
    signs: float = 0.99  # share of the pixels that are as long as the bias, to `sign_error`
    sign_error: float = 0.05
    # four chosen on 30 clients of raw pixels at small rates (tricks, seeds 8000 to 8029)
    bias_lost: float = 1e-3  # error of the bias's change, as a share of it, from which on rounding is undone
    hardly_rounded: float = 1 / 16  # share of a layer's entries: those of the smallest units in the last place
    bias_fits: int = 3  # least squares in turn with the errors that they find
    not_rounding: float = 0.5  # share of the error's variance that is no rounding, from which on nothing is undone
    centred: float = 3e-3  # sums of rows of the update, to its size: 3e-4 of centralized ones, of plain ones 0.04


class DEFENSE(Thresholds):
    """How a quantized or sparsified update is completed (`attacks.span.evidence.known_defense`)."""

    # [matters] half of them lose everything: the second layer has more directions than images
    second_layer_ranks: tuple[float, ...] = (2.0, 1.5, 1.2)  # ranks per image tried, until the entries sent suffice
    random_rounding_misfit: float = 0.05  # share of what rounding changed: a misfit above it was not to the nearest
    highest_rank: float = 0.4  # share of the smaller side of the update: the highest rank that is sought


class SEARCH(Thresholds):
    """The search for points of low ρ (`attacks.span.search`), in pixels and in feature space."""

    deflation_floor: float = 1e-3  # ε of the deflated ρ: keeps it finite on an image that is found already
    # [matters] half loses images: starts that came to one point stay several
    same_point: float = 0.1  # share of the median distance within which two candidates count as one
    same_length: float = 1e-4  # share of the median length within which they do where all are about one point
    # of the second layer, where features hardly moved: fewer cost less, have fewer minima and lost no image
    leading_per_image: float = 2.0  # directions per image that a search starts with
    leading_misses: float = 2e-3  # share of the update that they may leave; 5e-4 at most at rest, 7e-3 in drift
    merge_after: float = 0.2  # share of a search's steps after which starts begin to come together
    merge_every: int = 20  # steps between two looks at which of them have
    settle_rate: float = 0.4  # share of the learning rate at which the search ends and settling starts
    # [matters] half loses images of a narrow network, as half the polishing steps do: minima are not reached
    polish_rate: float = 0.1  # share of the learning rate at which settling ends and polishing starts
    complement_after: float = 0.75  # share of the images that passed, from which only what they leave is searched
    idle_passes: int = 2  # passes without gain, one after the other, that end the search
    refused_passes: int = 2  # passes where the update is refused already: what they find is held, never returned
    # chosen on one client of 100 digits at width 1024: an image rested midway to the one that was missing, 3.5 off
    reflected: int = 5  # missing images in which one that passed is reflected: the nearest
    newton_steps: int = 8  # that take a candidate to its minimum, at most; three sufficed from an L2 distance of 3.7
    newton_gain: float = 1e-3  # share of ρ that a step has to gain for another one to follow
    ridge: float = 1e-12  # of a mean square, added to normal equations


class DECOY(Thresholds):
    """Which ρ is good by chance: that of decoys, the means of two candidates (`attacks.span.search.candidates`)."""

    number: int = 1000  # decoys that are drawn
    accepting_quantile: float = 0.01  # quantile of the decoys' ρ below which a candidate is accepted
    deflating_share: float = 1 / 3  # share of that ρ below which a candidate is taken for found and deflates


class SPARSITY(Thresholds):
    """The sparsity test of a candidate's duals L c (`attacks.span.sparse_duals`)."""

    zero_widths: float = 8.0  # standard deviations of its rounding error below which an entry of L c is zero
    clean: float = 0.02  # rms of L c: zeros count only below it; entries so small are chance on 1.6 % of the units
    # [matters] twice leaves images that share too few zeros less exact; half changes nothing
    free_choices: float = 1.25  # zeros per image that the choice of c can place at will; N − 1 in theory
    chance: float = 0.05  # share of the units whose entry may be zero by chance
    # times the root of the median number of zeros, below which a dual may be a mixture. Chosen on two clients of 100
    # digits at width 1024 (median 488): mixtures had 203 to 356, the duals of other images 409 and more
    below_typical: float = 5.0
    # of the zeros of a dual that its image contradicts, the most that are another dual's as well. Chosen on one client
    # of 100 digits at width 1024: a mixture with a dual lost in rounding had 0.99. Images of MNIST, CIFAR-10 and
    # Tiny-ImageNet, 8 to 64 at widths of 128 and 1024 with random weights, share 0.94 at most
    shared_zeros: float = 0.95
    independent: float = 0.05  # length of c outside the span of sparser ones; 0.4 and more for private images
    tested_per_missing: int = 2  # candidates that take the test, per image that is still missing
    # of the bound of a zero: the least size of an entry of L c of which ratios are taken; of 64 digits up to
    # 16 % agree by chance at 4, 6 % at 50
    clear: float = 50.0


class CROWDED(Thresholds):
    """The search where images are many for the width (`Regime.many_images`).

    Chosen with clients of MNIST in view: seed 0 of held-out ones, one step or 5 epochs of 10 images, widths
    of 128 and 256, one round and four. Not varied by `sensitivity`.
    """

    images_of_width: float = 0.2  # images per unit of the width above which the search goes this way
    path: tuple[float, ...] = (0.0, 0.5, 1.0)  # where from the sent (0) to the returned parameters features are tested
    directions_of_width: float = 0.5  # share of the width: as EVIDENCE.directions_of_width
    still_of_width: float = 0.5  # images per unit of the width up to which features at rest are searched
    least_zeros: float = 0.3  # share of the units: so many zeros a mixture of two duals can have
    chance: float = 0.03  # as SPARSITY.chance, beside N choices and no more: 3 zeros at most were seen on 384 units
    # share of the images that passed, from which every start in DUAL is tried; where images are few for the width, for
    # which it was not chosen anew, also starts that avoid nothing
    all_starts_after: float = 0.5


class CERTAINTY(Thresholds):
    """Whether a candidate is certain enough to be returned (`attacks.span.acceptance`).

    Chosen on 2,300 candidates of clients at width 128, N from 19 to 51, of MNIST, CIFAR-10 and LFW's faces. Of 260
    wrong ones none had an error below 0.038, but two, of misfits of 17 and 33. docs/records/span_width.md has rates.
    """

    error: float = 0.03  # of the median distance between candidates: the most that E may be
    # of that distance, in noise that hides zeros: more, and candidates are one point. Chosen on 90 clients of 2 to 16
    # images through smooth activations: private images had at most 0.06, one mean that came back six times 170
    error_in_noise: float = 0.25
    # of that distance: what the update's error may move an image by. Chosen on the clients of `EVIDENCE.bias_lost`
    moved: float = 0.1
    # chosen on three clients of 8 raw CIFAR-10 images in two batches, the first three of those below
    way: tuple[float, ...] = (0.0, 0.5)  # parts of the way from the sent parameters at which features are compared
    misfit: float = 8.0  # F ratio of the directions that duals fix; private images: 99 % below 6
    contradicted: float = 0.3  # of a dual's zeros, on units that its image activates; private ones: 99 % below 0.15
    residual: float = 0.05  # ρ at the parameters sent; private images: at most 0.024
    # chosen on 15 clients of 8 raw CIFAR-10 images in two batches (width 256) and 11 of MNIST at width 128 (N = 13 to
    # 51): duals of images had at most 0.97 up to a fifth of the width, the 6 mixtures that passed 1 or infinity. On 40
    # further clients of such raw images all 8 came back from 37 (exact interval 80 to 98 %), and none that is nobody's
    leverage: float = 0.99  # of one unit among the zeros of a dual: the most where N duals determine all images
    # chosen on 60 clients of 6 raw CIFAR-10 images in two classes (seeds 7300 to 7314, four kinds of training): the
    # duals behind the 26 images that were nobody's had 0.13 and more, those of private ones mostly 0.01 at most; and on
    # 10 clients of 16 to 64 images of MNIST in ten classes, whose duals had up to 0.06 by chance
    one_ratio: float = 0.05  # of the units where two duals are not zero, the most with one ratio
    compared: int = 32  # such units: the fewest that tell
    rounding: float = 1e-3  # of ‖g‖: a residual below it is rounding or drift, and no misfit
    # chosen on 8 clients of 38 digits at width 128 and one of 100 at 1024: private images at most 2.9, the one image
    # that was nobody's 19
    at_rest: float = 5.0  # of E: by how much least squares may still move a candidate
    # chosen on 450 clients of 2 to 16 images (docs/records/span_random.md): private images had 0.7 at most in 92 of 107
    # cases, the four that were nobody's 6 and more
    mixed: float = 0.5  # of the ρ of a mean of two images: the most where images are missing
    # chosen on those and 665 more: 0.08 to 0.28 in the six whose noise had hidden an image, for one of nobody; in
    # those whose noise hid none, two had 0.3 and 0.5, all others at least 0.6
    standing_out: float = 0.5  # of noise: the least of a second image in the place of one where N is not told
    least_slope: float = 0.05  # of the activation: below it, a unit's signal tells little of what came to the unit


class ONE_HIDDEN(Thresholds):
    """Duals of two values (`attacks.span.variants.one_hidden`)."""

    guessed_turns: tuple[int, ...] = (40, 10)  # of assigning units and projecting with a class's signal, pass by pass
    fitted_turns: tuple[int, ...] = (15, 50)  # with a signal that is fitted, thereafter
    most_outputs: int = 64  # with W₂'s change: more make fitted turns slow, and explain anything
    softness: float = 0.5  # mean square of a dual: the width of the first assignments
    soft_share: float = 0.7  # of the turns, after which assignments are hard
    faintest: float = 0.02  # of the mean |g|: weaker units count as this one does
    same: float = 0.99  # cosine from which two duals are one
    # of a dual, the most that no signal at the outputs explains, with its own bounds: sums and differences of two duals
    # whose images are of a class leave 0.2 and more after one step, and private duals up to 0.45 after many
    of_usual_misfit: float = 4.0  # of the lower quartile of those found
    misfit: tuple[float, float] = (0.1, 0.7)
    contradicted: float = 0.1  # as CERTAINTY.contradicted; private images: at most 0.07
    mixed: float = 2.0  # zeros that a mixture of three duals has where one of them is not zero: theory
    tested: int = 8  # candidates of a pass that are made sparse, beside those for every image that is missing
    points: int = 40  # random ones of the span of images that are missing, once a pass finds no new dual
    idle_passes: int = 4  # passes without a new dual that end the search
    # of images, and of the 1 beside their features, in which they are compared with the output layer's rows
    sizes: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.6, 0.85, 1.0, 1.2, 1.6, 2.5, 5.0, 10.0, 20.0)
    # of what an image leaves outside the output layer's rows, in those sizes. Chosen on 60 clients of 1 to 24 images:
    # those of plain training left 0.93 and more, those whose weights and biases learned at different rates at most 0.5
    much_less: float = 0.7
    told_apart: float = 3.0  # gap behind N values of the outputs in noise: 4 to 24 of N classes, at most 1.9 of fewer


class OWN_UNITS(Thresholds):
    """Images that single units give away (`attacks.span.own_units`)."""

    sine: float = 0.02  # λ below which an image is one
    # relative difference of a dual's entry from that of the row that gave its image away; the next where none is left
    entry: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 0.05)
    dimensions: float = 0.5  # of the units that moved: the most that images and outputs may have together
    outputs: int = 128  # more make the test slow
    units: int = 200  # that moved, from which one row suffices to give an image away
    again: float = 0.01  # relative distance up to which two rows give the same image away
    off: float = 0.1  # relative distance from which all duals together contradict the image that a row gave away
    above_noise: float = 10.0  # of the noise of a row: rows below are not looked at
    faintest: float = 1e-4  # of a row's norm: the least entry of the bias, by which it is divided
    tiny: float = 1e-12  # of the largest: below it, signals that a few active units do not tell apart


class EXTREME(Thresholds):
    """Images as vertices of the points with pixels in range (`attacks.span.search.descent`)."""

    # chosen on 30 clients that mix 8 to 30 images of the 8x8 digits, MNIST, CIFAR-10 and LFW, 300 programs each: no
    # wrong vertex had less than 0.9, private images of MNIST 0.04 to 0.5
    leverage: float = 0.7  # of a pixel at an end of its range: the largest that a certain vertex may have
    tolerance: float = 1e-3  # in pixel values: how far outside its range a linear program may put a pixel
    rounding: float = 3e-4  # in pixel values: how far from its end least squares may leave a pixel
    # of the largest singular value: below it rounding alone pins a point; of the range: below it one is of one colour
    degenerate: float = 1e-3
    constant: float = 1e-4  # of the largest: a pixel that varies less in the span is the same in all images
    independent: float = 0.02  # share of a vertex outside the span of those before it
    directions: int = 300  # random ones, a linear program in each
    most_of_rank: float = 0.5  # share of the rank that the pixels allow, beyond which every vertex looks like an image


class DUAL(Thresholds):
    """The search for the sparsest duals (`attacks.span.sparse_duals`)."""

    avoid_weight: float = 100.0  # of y_j · c = 0 in the start, against the energy of L c on inactive units
    # [matters] half loses images and lets a stray in
    start_shares: tuple[float, ...] = (0.5, 0.25, 0.125)  # of the inactive units, the surest ones, to start from
    # [matters] half lets a stray in
    reweightings: int = 20  # steps of reweighted least squares
    # [matters] half finds more images of a narrow network, and a stray
    bluntest: float = 0.3  # ε of the first step, relative to the rms of L c
    sharpest: float = 1e-3  # ε of the last step, relative to the rms of L c
    small: float = 1e-2  # rms of L c: smaller entries are zeros or about to become some
    still: float = 1e-8  # 1 − |c · c'| of two steps: once there are zeros enough, only trimming is left
    checked_at: int = 10  # the step at which hope is judged
    hope: float = 0.6  # share of the zeros that pass the test, which have to be there then
    trims: int = 4  # last steps on the units that look like zeros, the bound falling tenfold from the sharpest ε
    mixed: int = 32  # nearest directions that may be mixed into one
    doubtful: float = 0.25  # share of the directions, those with the fewest zeros, that may be mixtures of duals


class FIT(Thresholds):
    """Least squares under the zeros that rough images predict (`attacks.span.variants.pixels`)."""

    inactive_margin: float = 0.2  # rms of the units' inputs: so far below zero at both ends a unit is inactive
    iterations: int = 24  # of alternating least squares, where the update is known but for noise
    iterations_in_intervals: int = 72  # where only intervals of its entries are known
    zeros_kept: int = 3  # iterations after which the zeros are read again
    ridge: float = 1e-9  # share of the mean square of a column, added to the normal equations
    most_left: float = 1.1  # of what N directions leave of the update: the fit may leave so much (right ones: 1.03)


class ACCEPTANCE(Thresholds):
    """Whether a set of images explains the second layer's update (`attacks.span.acceptance`)."""

    few_sparse: float = 0.25  # share of the accepted that pass the sparsity test: fewer prove nothing for the set
    # [matters] half refuses right sets of noisy updates; what is lost: docs/records/span_withstands.md
    unexplained: float = 0.5  # of what as many decoys leave: the most that the set may leave
    # [matters] half refuses a right set of three rounds
    unexplained_sparse: float = 0.92  # the most over several rounds that are not too few: zeros can repeat there
    held_per_image: float = 2.0  # candidates per image that are kept, those returned among them


class FEATURE(Thresholds):
    """The search behind a convolutional body (`attacks.span.feature_space`)."""

    span_directions: tuple[float, ...] = (2.0, 3.0, 4.0)  # searched per image, by how many passes brought nothing
    searches_per_pass: int = 3  # searches in feature space before pixels are looked for
    coarse_fifths: int = 3  # fifths of the steps that a search takes before its rate falls
    negative_weight: float = 1.0  # of ‖relu(−h)‖² / ‖h‖² beside ρ, where no feature is negative
    deflating_ratio: float = 10.0  # times the lowest tenth of ρ below which feature vectors deflate
    deflating_quantile: float = 0.1  # that lowest tenth
    inverted_per_missing: float = 1.5  # feature vectors that are inverted, per missing image
    inverted_besides: int = 4  # feature vectors that are inverted besides
    dropped_ratio: float = 30.0  # times the lower quartile of ρ above which images are dropped while polished
    decoys: int = 100  # means of two candidates that are drawn
    accepting_quantile: float = 0.01  # quantile of the decoys' ρ and λ below which an image is accepted
    gradient_share: float = 0.5  # share of that quantile of λ that is asked for
    pixel_rank: float = 0.9  # share of the first layer's live units: the highest rank at which images are polished
    gradient_rank: float = 0.6  # share of them used for λ, whose equations are the other units
    noise_ratio: float = 1.5  # times the largest singular value that noise like the smallest ones can have
    smallest_values: float = 0.95  # share of the singular values behind which that noise is measured
    exact_gradient: float = 3e-5  # λ of images of the step: private ones have up to 6e-6, those of later ones 2e-4 on
    determined: float = 0.9  # nonzero features per pixel from which an image is returned: fewer leave many images
    # of the usual distance between images: the error that is expected of one, from which it is not returned. Chosen on
    # 14 clients of random networks: 31 images within 20 dB had at most 0.3, 19 farther off 0.32 and more
    left_open: float = 0.3
    most_pixels: int = 4096  # whose every pixel is moved for that; nonzero features alone tell of larger images
    few_descent: Descent = Descent(600, 0.05)  # to pixels: 7 of 32 within 20 dB in 13 s, 10 in 48 s by 2,500 steps
    pilot_decoys: int = 8
    # ‖x − d‖ of decoys by ‖their contrast‖ from which no image is sought; at 0.96 six of eight were recognized
    pilot_error: float = 1.0
    few_margin: float = 0.1  # of decoys' ρ, below which features are accepted: other minima of ρ end at 0.5 to 1 of it
    few_features: float = 0.25  # per pixel: LeNet-5 tells 28x28 images by a third, a ResNet-18 fails with a twelfth


class CONE(Thresholds):
    """Linear programs for features behind a ReLU (`attacks.span.feature_space.cone`)."""

    # by which entries may be negative, of the sum of all: float32 parameters are rounded; more where nothing is left
    tolerance: tuple[float, ...] = (1e-5, 1e-4)
    reweighted: int = 6  # programs from one objective at most
    shrinking: float = 0.3  # of the largest entry, by power of the program: what is added to weights' denominators
    zero: float = 1e-3  # of the largest entry, up to which entries of a vertex look zero
    sharpness: tuple[float, ...] = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)  # of the largest entry: ε of reweighted least squares
    ridge: float = 1e-12  # of a mean square, added to their normal equations
    null: float = 0.01  # of what zeros leave of any other point: the most that they may leave of a vertex
    null_unpeeled: float = 0.03  # the same before other images are taken out, where no signal certifies: noise is less
    leverage: float = 0.9  # of a zero among all, up to which a vertex needs none: 1 where it falls without it
    null_without_one: float = 0.06  # what they leave without the zero that tells most, where more than they certify
    negative: float = 0.01  # of the largest entry, up to which entries of private features may be negative
    same: float = 0.998  # cosine above which two vertices are one
    same_vector: float = 0.9999  # the same of pixels of maps, of which neighbours are much alike
    silent_share: float = 1e-3  # of a signal, on units that its features shut: 1e-4 of private ones, 1e-2 of others
    rounding: float = 1e-3  # rms of what units are fed: so near to zero it does not say whether one is shut
    surplus: tuple[int, int] = (1, 8)  # shut units beside as many as images, where zeros tell a vertex, and else
    barren: int = 40  # objectives in a row that lead to nothing new, after which the rest is given up


class PATCHES(Thresholds):
    """The least squares of a vision transformer's patches (`attacks.span.variants.patch_embedding`)."""

    bias_misfit: float = 0.1  # of the bias's update: SGD's rounding is far below, Adam's is of its own size
    explained: float = 0.5  # of that misfit: below it weight decay explains it; of rounding it explains next to none
    misfit: float = 0.01  # of the embedding's update, beside one image: 1e-5 of one, 0.1 and more of several
    pixel_error: float = 0.05  # that is expected of the least squares, pixel range 1: 26 dB
    alike: float = 3.0  # the largest singular value to the fourth: at most 2 of Muon, of plain clients 13 and more


class TOKENS(Thresholds):
    """Tokens of a vision transformer that are put together to images (`attacks.span.tokens`)."""

    decoys: int = 200  # images of nobody
    searches: int = 3  # of tokens, while some are missing. On one client 41 of 51 by each, and 47 by both of two
    noise: float = 1e-4  # of what LayerNorm is fed, by which a token may miss its equations
    least_spread: float = 1e-6  # of the largest, of what attention adds to decoys
    sure: float = 0.3  # of what the second best place leaves: what the best one may leave
    starts: int = 2  # groupings from random ones, beside that by similar mixtures
    least_gain: float = 1e-6  # of the misfit, by which an exchange has to lower it
    spare: int = 2  # beside unknowns x and h of a token: μ and σ
    clusters: int = 10  # groupings of crowded tokens, from others to begin with
    least_within: float = 1e-4  # of the largest, of how tokens of an image differ
    image_free: float = 0.25  # of the second layer's directions, that no token reaches: they tell weight decay
    rounding: float = 2.0  # times the largest singular value of parameters' rounding: above it is the update
    same: float = 0.1  # of an image's length: two that are nearer are one
    positions: float = 1e-3  # of their update, that the patch embedding's may leave where they belong together
    sweeps: int = 20  # of exchanges over the places
    batch: int = 64  # images at once
    drawn: int = 100  # images of each width that have other patches where tokens are missing
    widths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)  # of their distribution, to the prior's
    ends: int = 4  # of the images drawn, from which the likeliest is sought
    steps: int = 15  # of Levenberg and Marquardt
    damping: float = 1e-4  # at first, of the normal equations' diagonal
    damped: float = 10.0  # how much more of it where a step fails
    most_damping: float = 1e6
    least_noise: float = 0.3  # of the median token's: none counts for less
    least_step: float = 0.01  # of what is left, by which a step has to lower it
    difference: float = 1e-6  # of a coordinate's size, by which derivatives are taken
    own: float = 0.1  # of a token's size, by which an image may miss it: right ones up to 0.013, others' 0.4
    exact: float = 1e-9  # misses nothing: of a token's size, or of a photograph's
    unknowns: int = 4000  # of an image, for which equations are solved
    # of what an image's tokens are by its unknowns: of 4×4 patches, 4e7 took one client of six half an hour of a core,
    # and gave nothing; of 8×8 patches 1e7 take some minutes
    derivatives: int = 20_000_000
    certain: float = 0.01  # error to be expected of a pixel, to the deviation of pixels


class MOMENTUM(Thresholds):
    """The factor by which momentum lengthens a client's first step (`attacks.span.feature_space.inversion`)."""

    factors: tuple[float, ...] = (5.0, 2.0, 15.0)  # from which it is sought: found from 2.5 and 12 where it is 6.5
    fit: Descent = Descent(200, 0.01)  # of the images
    factor_rate: float = 0.05  # of the factor's logarithm


class INVERSION(Thresholds):
    """From feature vectors to pixels, and polishing there (`attacks.span.feature_space`)."""

    start_deviation: float = 0.1  # standard deviation of the pixels from which images are sought, pixel range 1
    inversion: Descent = Descent(100, 0.1)  # from feature vectors to pixels
    first_rank: float = 4.0  # rank per image at which polishing starts
    first_polish: Descent = Descent(150, 0.03)  # at the first rank
    last_polish: Descent = Descent(200, 0.01)  # at the last rank
    accepted_polish: Descent = Descent(250, 0.005)  # of accepted images, at the last rank
    noise_rank: float = 1.5  # rank per image of a search from noise, where nothing tests feature vectors
    noise_search: Descent = Descent(300, 0.05)
    blur: float = 0.01  # weight of the roughness beside ‖h(x) − h‖² / ‖h‖²
    prior_weight: float = 10.0  # of the prior on images, as ρ · (1 + weight · prior)
    prior_roughness: float = 0.01  # weight of the mean squared difference of neighbouring pixels in that prior
    tiny: float = 1e-11  # ρ below which it is rounding error of float32
    difference: float = 1e-6  # by which pixels are moved, one by one, to see what their features tell, in float64
    change: float = 0.01  # of the usual distance of two images, by which brightness, contrast and size are moved
    batch: int = 256  # pixels that are moved at a time


class MAP_INVERSION(Thresholds):
    """From the maps of a convolution to pixels (`attacks.span.maps.inversion`); pixels of range 1."""

    starts: int = 2  # random images from which each map is inverted
    start_deviation: float = 0.05  # standard deviation of a start's coordinates at every size
    descent: Descent = Descent(2500, 0.05)
    betas: tuple[float, ...] = (0.9, 0.99)  # of Adam
    first_variation: float = 0.5  # weight of the total variation beside ‖maps(x) − wanted‖² / ‖wanted‖²
    last_variation: float = 3e-4  # that at the end; it falls geometrically
    leak: float = 0.2  # share of its gradient that a ReLU passes where it is off, at the start
    leaking_share: float = 0.7  # share of the steps by which that has fallen to 0, and pooling is a maximum
    pooling_sharpness: tuple[float, float] = (1.0, 100.0)  # of the smooth maximum, in standard deviations of the maps
    bounds_weight: float = 1.0  # of the mean squared distance from the bounds of pixels
    most_work: float = 6e12  # multiply-adds of all steps together: three minutes at 33 of them per nanosecond
    fewest_steps: int = 600  # that are worth their time
    few_descent: Descent = Descent(400, 0.05)  # where maps have fewer entries than pixels
    few_prior: float = 5e-3  # weight of the prior of photographs there: a tenth leaves noise, five times as much blurs
    pilot: Descent = Descent(300, 0.05)  # for decoys, before anything else is inverted
    pilot_decoys: int = 2
    most_energy_lost: float = 0.5  # share of the energy of a decoy's contrast up to which its inversion is trusted
    decoy_contrast: float = 0.2  # standard deviation of a decoy's pixels, about that of photographs
    leaves: int = 60  # discs of a decoy
    leaf_color: float = 0.25  # standard deviation of a disc's colours from its grey, pixel range 1


class FROZEN_BODY(Thresholds):
    """Inversion of exact features (`attacks.span.variants.frozen_body`): first smooth images, then these features."""

    start_deviation: float = 0.01  # standard deviation of the pixels from which features are inverted
    smooth: Descent = Descent(200, 0.05)
    smooth_blur: float = 3.0  # weight of the roughness
    exact: Descent = Descent(100, 0.02)
    exact_blur: float = 0.01
    decoys: int = 2  # known images, which have to come back from their features


class MAP_KERNEL(Thresholds):
    """Maps all of whose patches lie in a span (`attacks.span.maps.search`, `attacks.span.maps.update`)."""

    degree: int = 160  # of the Chebyshev polynomial that makes the smallest eigenvectors e¹⁶ times as large as others
    rescaled_every: int = 20  # products, after which the filtered vectors are brought back to length 1
    margin: float = 1.02  # of the bound on the eigenvalues: nothing may lie above it
    cut: float = 0.01  # eigenvalue below which a direction is one of maps: after one step others begin at 0.02
    clear_gap: float = 5.0  # ratio of neighbouring singular values that shows the rank of a single step
    floor: float = 3.0  # times the rounding of float32 parameters, below which what follows that gap has to lie
    most_left: float = 0.1  # of an update without a gap by half of its rank: more patches than channels leave 0.17
    most_rows: int = 256  # rows that are used where no gap shows the rank: more cost more than they tell
    directions: float = 1.2  # per row, tried first for the kernel; doubled while all are of it
    most_directions: int = 256  # taken of it where no gap shows the rank
    image_free: float = 0.1  # share of a convolution's singular vectors, the last, that show weight decay alone


class MAP_SEARCH(Thresholds):
    """The search for private maps in that kernel (`attacks.span.maps.search`). The bound by mixtures was set beside
    that by decoys later; on ten clients of the rows of docs/records/zoo.md (seeds 51 and 52) it changed nothing."""

    starts: int = 64  # random points
    search: Descent = Descent(150, 0.1)  # from each; the step size in the root mean square coordinate of a map
    search_of_differences: Descent = Descent(400, 0.1)  # where the span is one of differences of patches
    rounds: int = 4  # searches at most, while images are missing
    batches: int = 24  # tries for a whole batch: of four images 2 or 3 ended at the private maps, of eight 4 to 10
    exact: float = 1e-3  # of the bound on ρ, below which such a batch is accepted: right ones 1e-6, others 1 and more
    barren: int = 2  # in a row without a new map, after which a search ends that does not know how many there are
    # cosine with a map that was found, above which half of the later points are kept away. Chosen on one client of 5
    # images, whose maps have up to 0.84 with each other: 8 of 8 searches find the last map; at 0.6 7 of 8 did, and
    # those of a whole attack did not
    near: float = 0.85
    repulsion: float = 10.0  # by the square of what it is above that, beside ρ
    way: float = 0.5  # part of the way of several steps at which maps are sought first
    scale_free: float = 1e-3  # change of ρ at twice the length, below which a map's length is not known
    polished_besides: int = 2  # points from which L-BFGS goes on, the best that are distinct, beside one for each image
    polish: int = 250  # steps of it
    flat: float = 1e-12  # a change of ρ, or a slope, that ends them
    history: int = 30  # of these steps, from which curvature is read
    reported_every: int = 10  # steps between two reports of progress
    same_direction: float = 0.95  # cosine above which two candidates count as one
    accepting_share: float = 0.05  # of the decoys' median ρ and that of mixtures, below which a candidate is accepted
    # of the second layer, for each unknown of a map after several steps: a unit that is shut solves its own, and a ReLU
    # shuts half. Three maps of nobody had 1.03, private ones of three clients 36 and more
    equations: float = 2.0
    decoys: int = 200  # images that are no private ones
    ridge: float = 1e-3  # of the mean square, in the regression of how maps moved


class PLACES(Thresholds):
    """Which vector of a projection lies where (`attacks.span.maps.places`)."""

    decoys: int = 1000  # images of nobody, from which neighbours are learned
    most_places: int = 25  # of a map: every two of them are swapped
    most_entries: int = 100_000_000  # of what the depthwise convolution saw of the decoys: 0.4 GB, three times
    line: float = 1e-3  # of maps, what a ReLU's line may leave of them
    alone: float = 1e-2  # of the spread of outputs, by which places that are alone may differ in rounding
    left_by_lengths: float = 0.05  # of the bias's update, up to which lengths are believed
    apart: float = 2.0  # times the farthest error of an image: the nearest one of the next image
    pixel_axes: int = 60  # of a pixel of the map, by which it tells what was around it
    map_axes: int = 30  # of a pixel in the Gaussian of whole maps
    ridge: float = 1e-3  # of a mean square, in the regression and in the Gaussian
    shrunk: float = 0.05  # of the covariance of whole maps, to that of places by themselves
    noise_draws: int = 400  # sums of what the regression misses
    noise_axes: int = 256  # along which that noise is not the same
    starts: int = 200  # random arrangements
    kept: int = 40  # of those the Gaussian leads to
    ends: int = 12  # from which the joint search starts
    gain: float = 1e-3  # nats by which a better arrangement is better
    alike: float = 0.05  # of a map's length, by which another arrangement makes another map
    margin: float = 3.0  # nats by which an arrangement has to be likelier than every other
    most_misfit: float = 10.0  # in units of the noise: 3 to 7 of photographs, 18 to 25 of digits and noise


class SINGLE_IMAGE(Thresholds):
    """The image of a client of one through max pooling (`attacks.span.feature_space.single_image`)."""

    length: float = 1.25  # over which photographs' correlations fall, in widths of the image
    length_of_maps: float = 0.4  # that of the images whose maps are the prior of maps
    deviation: float = 0.25  # of a pixel, pixel range 1
    color_share: float = 0.06  # of the variance of colours beside that of grey
    grain: float = 1e-4  # share of a pixel's variance that no neighbour shares
    map_images: int = 3000  # from whose maps their covariance is taken
    map_samples: int = 600  # of a posterior of maps: four for each weight of a channel
    map_steps: int = 30  # linearizations for the maps: those found took 7 to 18
    image_samples: int = 200  # of a posterior of images
    image_steps: int = 8  # linearizations for an image
    edge_steps: int = 3  # of the variances of differences and the covariance of colours, in turn
    edge_power: float = 0.8  # of a squared difference, to its variance: 0 is normal, 1 has the heaviest tails
    least_edge: float = 0.05  # of the mean squared difference: none counts for less
    least_color: float = 0.003  # of the mean variance of a colour's differences
    damping: float = 0.5  # of the probabilities to win from one linearization to the next
    shrinkage: float = 0.1  # of the noise's covariance to its diagonal: samples are few
    trust: float = 3.0  # squared misses to their noise, up to which there is no more noise than that
    least_open: float = 0.2  # probability to be open from which an output that is shut counts
    rounding: float = 1e-4  # of float32 parameters, in an update or in what is found from it
    zero: float = 1e-6  # of the largest output: nothing
    certain: float = 4.0  # standard deviations above zero of an output that is open for certain
    exact: float = 1e-3  # of an update, from where on nothing is left to be found
    most_misfit: float = 0.01  # of an update that maps leave: right ones 1e-4, others 0.02 and more
    most_excess: float = 2.0  # misfit of an image to that of a decoy: 0.3 to 0.7 of one step, more of several
    most_left: float = 0.25  # misfit of an image: right ones 0.09 to 0.19; others 0.17 to 0.69 behind windows of 10x10
    most_energy_lost: float = 0.2  # of a decoy's contrast: 0.06 to 0.16 beside right images, 0.24 to 0.64 beside others
    ridge: float = 1e-4  # of a mean variance
    most_inputs: int = 4096  # numbers that a layer is fed; the square of them is held in memory
    tiny: float = 1e-12  # keeps variances positive


class LAST_LAYER(Thresholds):
    """What the last layer was fed (`attacks.span.variants.last_layer`)."""

    starts: int = 24  # of each class
    steps: int = 60  # of Levenberg and Marquardt from each
    idle: int = 20  # classes in a row that bring nothing: those left are no likelier
    damping: float = 1e-3  # at the start, of the mean square of the slopes
    margin: float = 10.0  # times what rounding leaves of δ outside the column space
    most_error: float = 0.03  # of a length, up to which a point is believed
    apart: float = 0.06  # of a length, from which two points are two images'
    same_share: float = 0.02  # by which the parts of images in an update may differ: right ones 1e-3
    most_shared: float = 0.05  # of an image's part in another's: right ones up to 0.033, blends 0.055 and more
    decay_drop: float = 0.1  # of sums over classes, which weight decay explains to this share if it was used
    least_weight: float = 1e-12  # of a class in the update: it has no image
    tiny: float = 1e-30  # keeps divisors positive
