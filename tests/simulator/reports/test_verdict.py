"""Verdicts on tables made by hand: what an engineer would say of them."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attacks import ATTACKS
from attacks.base import Attack
from attacks.update.private_set import UNKNOWN_MEAN
from simulator.reports.benchmark_table import strongest
from simulator.reports.tables import exposure_grid, leakage_grid
from simulator.reports.verdict import verdict
from simulator.reports.verdict_words import AGAINST, OF_CLASSES, REMEDIES
from simulator.results.schema import LEAKAGE

DOCS = Path(__file__).parents[3] / "docs"

FOUND, LIMITS = ("shown", "tried"), ("tried", "broke", "caveats")  # kinds of statements
PARTICIPANT = '{"pixel_mean": [0.3], "pixel_range": [0.0, 1.0]}'
BASE = dict.fromkeys(LEAKAGE.columns) | {
    "round": 1, "client": 0, "threat_model": "server", "attack": "span", "defense": "none", "seed": 0,
    "target": "private", "status": "ok", "detail": "", "num_private": 8, "num_inferred": 8, "num_reconstructed": 8,
    "recovered": 0, "recovered_fraction": 0.0, "held": 0, "leakage": 0.0, "floor_leakage": 0.05,
    "floor_recovered_fraction": 0.0, "knowledge": PARTICIPANT,
}  # fmt: skip


def table(*rows, **columns):
    """Each row differs from BASE in what it names, and all of them in `columns`."""
    return pd.DataFrame([BASE | columns | row for row in rows])


def recovered(count, of=8, **columns):
    return {"recovered": count, "held": count, "num_private": of, "leakage": count / of} | columns


def test_clients_of_many_images_hear_what_their_classes_take():
    def said(of=1000, **columns):
        return str(verdict(table(recovered(0, of=of), capacity=120, **columns)).statements)

    wanted = "how many images each class has (of SGD, with `learning_rate` and `steps` among what is known)"
    assert wanted in said() and wanted not in said(of=8)
    assert wanted not in said(class_counts='{"0": 1000}') + said(detail="classes: the network knows them already")


UNSCORED = ("recovered", "recovered_fraction", "held", "leakage", "floor_leakage", "num_reconstructed")
REFUSAL = "InputError: no row space; classes: public images have to be granted"
REFUSED = dict.fromkeys(UNSCORED) | {"status": "failed", "detail": REFUSAL}


def test_members_and_classes_that_are_told_without_an_attack_are_content():
    told = {"membership_auc": 0.72, "membership_auc_low": 0.69, "membership_auc_high": 0.75}
    found = verdict(table(REFUSED | {"num_private": 1000, "capacity": 120} | told))
    assert found.level == "partly exposed" and "No attack gave an image, but membership leaks" in found.headline
    assert found.of("tried")[-1] == "Attack 'span' refused in 1 case: no row space."
    assert any("have room for 120 images of 1000" in text for text in found.of("tried"))
    counts = {"class_counts": '{"3": 700, "5": 300}', "class_error": 0.1, "floor_class_error": 0.8}
    found = verdict(table(REFUSED | counts))
    assert "No attack gave an image, but the update of client 0 in round 1 tells how many images" in found.headline
    cells = exposure_grid(table(REFUSED | told)).rows[0]
    assert "no result" in cells and "0.72" in " ".join(cells)
    assert verdict(table(REFUSED)).level == "no result"


def test_the_headline_says_who_when_to_whom_by_what_knowing_what_and_how_many():
    found = verdict(table(recovered(2, client=0), recovered(7, client=2, round=3), recovered(1, client=1)))
    assert found.level == "exposed"
    assert found.headline == (
        "Client 2 is exposed worst: in round 3 the server recovers 7 of its 8 private images by attack 'span'. The "
        "attack was told nothing but the mean and the range of the pixels, which every participant knows."
    )
    assert "The server has images of 3 of 3 clients, at worst 7 of 8 from client 2 in round 3 by 'span'." in found.of(
        "shown", "tried"
    )


@pytest.mark.parametrize(
    ("knowledge", "words"),
    [
        ("{}", "told nothing."),
        (None, "told nothing."),
        ('{"pixel_mean": [0.3]}', "told nothing but the mean of the pixels, which every participant knows."),
        ('{"num_private": 8}', "told nothing but the number of images (num-examples), which a server of FedAvg knows."),
        ('{"num_private": 8, "steps": 3, "pixel_mean": [0.3]}', "told the number of steps, and the number of images "
         "(num-examples), which a server of FedAvg knows, and the mean of the pixels, which every participant knows."),
        ('{"labels": [1], "pixel_range": [0, 1]}', "told their labels, and the range of the pixels, "
         "which every participant knows."),
    ],
)  # fmt: skip
def test_what_the_attacker_was_told_is_in_words(knowledge, words):
    assert verdict(table(recovered(8), knowledge=knowledge)).headline.endswith(words)


def test_of_equal_rows_the_one_that_needed_less_is_the_worst():
    more = {"knowledge": '{"num_private": 8, "pixel_mean": [0.3]}', "client": 0}
    union = {"client": -1, "threat_model": "observer"}
    found = verdict(table(recovered(8, **union), recovered(8, **more), recovered(8, client=5)))
    assert found.headline.startswith("Client 5 is exposed worst")


def test_clients_that_lose_as_large_a_share_are_named_beside_the_worst():
    def said(*rows):
        return verdict(table(*rows)).headline.partition(":")[0]

    others = [recovered(8, client=2), recovered(8, client=4, round=2), recovered(7, client=1)]
    assert said(recovered(8, client=0), *others) == "Client 0 is exposed worst, and clients 2 and 4 as badly"
    assert said(recovered(8, client=0), *others[1:]) == "Client 0 is exposed worst, and client 4 as badly"
    assert said(recovered(8, client=0), others[2]) == "Client 0 is exposed worst"
    assert said(*(recovered(8, client=n) for n in range(9))) == "Client 0 is exposed worst, and 8 others as badly"


def test_without_the_truth_the_first_round_is_named_not_the_one_explained_best():
    found = {"recovered": None, "num_reconstructed": 8, "num_inferred": 8, "num_vouched": 8}
    rows = [found | {"round": 1, "relative_residual": 0.02}, found | {"round": 5, "relative_residual": 0.001}]
    assert "in round 1 the server finds 8 images of 8" in verdict(table(*rows)).headline


def test_the_rounds_in_which_the_worst_client_loses_images_are_named():
    rows = [recovered(count, round=number) for number, count in enumerate([8, 8, 8, 0, 8, 0], start=1)]
    assert "Client 0 loses images to the server in rounds 1–3 and 5, of 6 rounds attacked." in verdict(table(*rows)).of(
        "shown", "tried"
    )


def test_all_clients_together_and_those_who_see_them():
    found = verdict(table(recovered(19, of=24, client=-1, threat_model="observer")))
    assert found.headline.startswith(
        "All clients together are exposed worst: in round 1 an observer of the global model"
    )
    assert "recovers 19 of 24 private images by" in found.headline


def test_what_public_images_recover_as_well_is_no_exposure():
    found = verdict(table(recovered(2, floor_recovered_fraction=0.25)))
    assert found.level == "nothing shown" and "does not mean that nothing leaks" in found.headline
    assert any("what no attack took may still be there" in line.lower() for line in found.of(*LIMITS))


def test_leakage_of_nothing_beside_certain_membership_is_reconciled_in_one_sentence():
    telling = {"membership_auc": 1.0, "membership_auc_low": 0.98, "membership_tpr_1pct": 0.875}
    found = verdict(table(telling))
    assert found.level == "partly exposed" and "membership leaks" in found.headline
    (sentence,) = (line for line in found.of(*FOUND) if "no contradiction" in line)
    assert sentence.startswith("Leakage 0.00 beside a membership AUC of 1.00 (client 0, round 1)")
    assert "tells whoever has an image already whether it was trained on" in sentence
    assert any("at one false alarm in 100 it finds 88 % of the private images" in line for line in found.of(*FOUND))
    assert not any("no contradiction" in line for line in verdict(table(recovered(8, **telling))).of(*FOUND))


def test_an_auc_that_chance_explains_is_no_membership():
    row = {"membership_auc": 0.65, "membership_auc_low": 0.45, "membership_auc_high": 0.81}
    found = verdict(table(row))
    assert found.level == "nothing shown"
    assert (
        "Membership: that an update tells private images from others was not shown (AUC at most 0.65, 95 % interval "
        "0.45 to 0.81)."
    ) in found.of("tried")


def test_an_auc_of_one_image_denies_no_member_that_was_told():
    """A newcomer's case: the interval of one image holds 0.5, and the image was told at 1 false alarm in 1,000."""
    row = recovered(1, of=1, membership_auc=1.0, membership_auc_low=0.35, membership_auc_high=1.0)
    found = verdict(table(row | told(1, of=1, membership_fpr=0.001, membership_p=0.001)))
    (line,) = (line for line in found.of(*FOUND) if line.startswith("Membership"))
    assert line.startswith("Membership: 1 of 1 candidate took part, at 1 false alarm in 1,000")


def test_images_that_an_attack_holds_and_doubts_are_in_the_attackers_hands():
    found = verdict(
        table({"num_reconstructed": 0, "held": 5, "detail": "nothing returned: no candidate has ρ below 0.1"})
    )
    assert found.level == "partly exposed"
    assert "by attack 'span', counting those that the attack held back (0 of them returned)." in found.headline
    among = verdict(table({"num_reconstructed": 0, "held": 5, "num_held": 7})).of("shown")
    assert any("not sure of, among 7 candidates: the attacker has 5" in line for line in among)
    held = "Attack 'span' returned 0 of 8 images of client 0 in round 1 and held back 5 that it was not sure of: the "
    assert any(line.startswith(f"{held}attacker has 5") for line in found.of("shown"))
    assert any(
        "returned nothing in 1 of 1 case," in line and "refusal and no safety" in line for line in found.of(*LIMITS)
    )


def test_images_held_that_nothing_tells_from_blurs_of_anybody_are_told_with_that_doubt():
    """Of 20 faces up to six are "held" where the candidates are other people's, blurred, and the pool has no others."""
    for p, doubted in ((np.nan, True), (0.01, False)):
        shown = verdict(table({"num_reconstructed": 0, "held": 5, "null_held_p": p})).of("shown")
        (line,) = (line for line in shown if "held back 5" in line)
        assert ("blurs of anybody's may pass" in line) == doubted


def test_reasons_are_told_without_names_of_the_code():
    """A newcomer's case: "refused in 1 case: InputError: …"."""
    (line,) = verdict(table({"status": "failed", "detail": "InputError: the update is zero"})).of("tried")
    assert line == "Attack 'span' refused in 1 case: the update is zero."


def test_an_attack_that_gave_up_is_counted_among_its_own_cases():
    """One of three cases of span, of six attacks in all: features are a result."""
    gave_up = {"num_reconstructed": 0, "detail": "nothing returned: too many images"}
    features = gave_up | {"num_features": 8, "round": 2}
    rows = table(gave_up, features, recovered(8), *(recovered(1, attack="ntk", round=r) for r in (1, 2, 3)))
    assert any(
        line.startswith("Attack 'span' returned nothing in 1 of 3 cases, ") for line in verdict(rows).of("tried")
    )


def test_images_that_fit_the_update_and_are_not_in_the_truth_question_the_truth():
    """A newcomer's case: --truth held another client's images, and the verdict was that nothing was shown."""
    exact = {"num_vouched": 8, "relative_residual": 0.026}
    found = verdict(table(exact))
    doubt = (
        "Attack 'span' returned 8 images of client 0 in round 1 that passed its own test and leave 0.026 of the update "
        "unexplained, and they are none of the private images that were given: check whose these are, and that they "
        "are what was trained on."
    )
    assert found.level == "nothing shown" and found.headline.startswith(f"{doubt} Nothing was shown to leak by 'span'")
    without = doubt.replace(" and leave 0.026 of the update unexplained", "")  # where the attack counts no residual
    assert verdict(table(exact | {"relative_residual": float("nan")})).headline.startswith(f"{without} Nothing was")
    among_others = verdict(table(exact, recovered(8, client=1)))
    assert among_others.level == "exposed" and doubt in among_others.of("caveats")
    for row in (exact | recovered(1), exact | {"relative_residual": 0.83}, exact | {"num_features": 8}, {}):
        assert "none of the private images" not in str(verdict(table(row)).as_json())


def test_who_has_images_of_all_clients_together_alone_has_none_of_0_clients():
    """A newcomer's case: "has images of 0 of 1 client, at worst 8 of 8 from all clients of a round together"."""
    union = recovered(8, client=-1, threat_model="history")
    said = verdict(table(union, recovered(0, client=0, threat_model="history"))).of("shown")
    history = "Whoever keeps all rounds (history) has 8 of 8 from all clients of a round together in round 1 by 'span'."
    assert history in said


def test_an_attack_of_the_user_s_is_none_that_we_have_not_tried():
    class Theirs(Attack):
        name = "theirs"

    ATTACKS["theirs"] = Theirs
    try:
        assert "theirs" not in str(verdict(table(recovered(8))).of("caveats"))
    finally:
        del ATTACKS["theirs"]


def test_images_that_are_off_in_brightness_count():
    found = verdict(table({"recovered_affine": 8, "detail": UNKNOWN_MEAN}))
    assert found.level == "exposed" and "up to brightness and contrast" in found.headline
    assert any("nothing added" in line and "an eye would know it" in line for line in found.of(*LIMITS))


def test_images_that_are_there_up_to_brightness_are_counted_both_ways_wherever_they_are_counted():
    """66 in a bullet beside 54 in the table would contradict each other."""
    union = {"client": -1, "threat_model": "observer", "num_private": 72, "recovered": 54, "recovered_affine": 66}
    rows = table(union, recovered(3, held=5))
    found = verdict(rows)
    loosely = "up to brightness and contrast (54 as they are)"
    assert f"recovers 66 of 72 private images by attack 'span', {loosely}. The attack was told" in found.headline
    both = f"66 of 72 {loosely}"
    assert any(both in line for line in found.of(*FOUND))
    assert any("5 of 8 counting those that the attack held back (3 of them returned)" in d for d in found.of(*FOUND))
    page = exposure_grid(rows)
    assert both in [cell for row in page.rows for cell in row]


def test_too_few_public_images_are_named_in_words():
    said = verdict(table(recovered(8, detail="the floor has 1 of the 30 public images that it needs: give more")))
    assert "has 1 of the 30 public images that it needs, one for each returned" in str(said.of(*LIMITS))


def test_caveats_are_said_once_however_many_rows_have_them():
    guess = "the first layer's spectrum has no clear gap: {} private images is a guess (noise)"
    found = verdict(table(recovered(8, detail=guess.format(5)), recovered(8, detail=guess.format(53))))
    (line,) = (line for line in found.of(*LIMITS) if "guess" in line)
    assert line.startswith("In 2 rows: ") and "5 to 53 is a guess" in line


def test_numbers_that_differ_between_rows_are_said_from_the_least_to_the_largest():
    """A newcomer's case: "this row has 20" of rows that have 20, 200 or 60."""
    remark = "280 are given, and row_{} has {} at p = {}"
    rows = [recovered(8, detail=remark.format(1, *numbers)) for numbers in ((20, 0.5), (200, 0.01), (60, 0.5))]
    (line,) = (line for line in verdict(table(*rows)).of("caveats") if "280" in line)
    assert line == "In 3 rows: 280 are given, and row_1 has 20 to 200 at p = 0.01 to 0.5."


def test_classes_that_differ_between_rows_are_no_range():
    """A newcomer's case: "their classes: 3 to 8, 7 to 9" of clients of 5 and 7, 8 and 8, and 3 and 9."""
    details = (f"of 2 images, and their classes: {classes} (nothing else)" for classes in ("5, 7", "8, 8", "3, 9"))
    (line,) = (line for line in verdict(table(*({"detail": own} for own in details))).of("caveats") if "their" in line)
    assert line == "In 3 rows: of 2 images, and their classes, in the column `detail` (nothing else)."


def test_a_cut_remark_ends_in_a_whole_word():
    """A newcomer's case: "this row has 20 …" of a row that has 200."""
    remark = f"{'a' * 136} 200 images"
    assert f"{'a' * 136} 200 …" in leakage_grid(table({"detail": remark})).cells()["remarks"]
    remark = f"{'a' * 138} 200 images"
    assert f"{'a' * 138} …" in leakage_grid(table({"detail": remark})).cells()["remarks"]


def test_nobody_loses_images_to_a_baseline_that_does_not_look_at_the_update():
    """A newcomer's case: a grey picture among 108 lies within 20 dB of the mean image, and of no other's (p = 0.01)."""
    near = recovered(1, floor_recovered_fraction=0.0, null_recovered_p=0.01, null_held_p=0.01)
    found = verdict(table(near | {"attack": "mean_image"}))
    assert found.level == "nothing shown" and found.headline.startswith("No more than chance was shown to leak")
    assert verdict(table(near)).level == "partly exposed"


def test_what_was_not_tried_failed_or_ran_out_of_time_is_said_with_its_reason():
    rows = table(
        recovered(8), {"status": "skipped", "detail": "secure aggregation: the sum only"},
        {"status": "skipped", "attack": "kkt", "detail": "left for want of time"},
        {"status": "timeout", "attack": "ntk", "detail": "no result within adversary.timeout = 3 s"},
        {"status": "failed", "attack": "ntk", "detail": "RuntimeError: out of cheese"},
    )  # fmt: skip
    said = verdict(rows).of(*LIMITS)
    assert "Attack 'span' not tried in 1 case: secure aggregation: the sum only." in said
    assert "Attack 'kkt' not tried in 1 case: left for want of time." in said  # of each its own reason
    assert "Attack 'ntk' out of time in 1 case: no result within adversary.timeout = 3 s." in said
    broke = (
        "Attack 'ntk' broke in 1 of 2 cases, and what it would show there is not known: RuntimeError: out of cheese."
    )
    assert verdict(rows).of("broke") == [broke]
    assert "Not tried: attack gradient_matching; threat models observer and history." in said
    told, alike = "an attack told the defense (`adaptive: true`", {"defense": "noise"}
    assert told not in str(said) and told in str(verdict(table(alike)).of("caveats"))
    assert told not in str(verdict(table(alike, alike | {"adaptive": True})).of("caveats"))


@pytest.mark.parametrize("rows", [[], [{"status": "failed", "detail": "out of cheese"}]])
def test_without_any_result_nothing_is_known(rows):
    frame = table(*rows) if rows else LEAKAGE.frame([])
    found = verdict(frame)
    assert found.level == "no result" and "nothing is known" in found.headline


def test_an_attack_that_broke_is_no_verdict_of_nothing_shown():
    broke = {"status": "failed", "detail": "RuntimeError: view size is not compatible"}
    found = verdict(table(broke, {"attack": "ntk"}))
    assert found.level == "no result"
    assert "attack 'span'" in found.headline and "RuntimeError: view size" in str(found.of("broke"))
    refused = {"status": "failed", "detail": "InputError: attack 'span' needs num_private"}
    assert verdict(table(refused, {"attack": "ntk"})).level == "nothing shown"
    assert verdict(table(broke, {"round": 2})).level == "nothing shown"  # it had results
    assert verdict(table(broke, recovered(8, attack="ntk"))).level == "exposed"


def test_a_headline_of_nothing_shown_says_in_how_many_cases_an_attack_gave_no_result():
    """A reader's case: one result, and eight crashes of the same attack that the headline did not mention."""
    crashes = [{"client": client, "status": "failed", "detail": "RuntimeError: boom"} for client in range(1, 9)]
    found = verdict(table({}, *crashes))
    assert found.level == "nothing shown"
    assert found.headline == (
        "Nothing was shown to leak by 'span', which does not mean that nothing leaks: attack 'span' broke in 8 of 9 "
        "cases."
    )
    late = [row | {"status": "timeout"} for row in crashes[:3]]
    assert verdict(table({}, *late)).headline.endswith(": attack 'span' ran out of time in 3 of 4 cases.")
    refused = [row | {"detail": "InputError: no row space"} for row in crashes]
    assert verdict(table({}, *refused)).headline.endswith("does not mean that nothing leaks.")


def test_without_the_truth_it_says_what_was_found_and_how_sure_that_is():
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan)
    sure = verdict(table(blind | {"num_inferred": 10, "num_reconstructed": 9, "relative_residual": 0.002}))
    assert sure.level == "exposed"
    assert "finds 9 images of 10 that the update shows (very likely right: they leave 0.002" in sure.headline
    # a hundredth of the numbers was sent (random_k), and none of 200 images was right (docs/records/audit.md)
    few = {"num_inferred": 10, "num_reconstructed": 20, "relative_residual": 0.04, "determined": 0.4, "attack": "ntk"}
    anything = verdict(table(blind | few))
    assert anything.level == "nothing shown" and "fewer numbers than they have pixels" in " ".join(anything.of(*LIMITS))
    doubtful = verdict(table(blind | {"num_inferred": 10, "num_reconstructed": 16, "relative_residual": 0.7}))
    assert doubtful.level == "nothing shown"
    assert "Attack 'span' returned images that leave 0.7 of an update unexplained or more: they may be noise" in str(
        doubtful.of(*FOUND)
    )


def test_without_the_truth_images_that_passed_a_test_against_decoys_count_whatever_they_leave_unexplained():
    """24 exact MNIST images left 0.15 of the update: the longer the training, the more its features drift."""
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan)
    tested = blind | {"num_inferred": 24, "num_reconstructed": 24, "relative_residual": 0.15, "num_vouched": 24}
    ntk = blind | {"attack": "ntk", "num_inferred": 24, "num_reconstructed": 48, "relative_residual": 0.12}
    found = verdict(table(ntk, tested))
    assert found.level == "exposed" and "by attack 'span'" in found.headline
    assert "very likely right: they passed the attack's own test and leave 0.15" in found.headline
    assert "augments or mixes its images views and blends" in str(found.of(*LIMITS))  # 16 of 19 behind mixup were
    assert "Attack 'ntk' returned images that leave 0.12" in str(found.of(*FOUND))
    alone = verdict(table(ntk))
    assert alone.level == "nothing shown" and "The server has no sure image." in alone.of(*FOUND)
    strays = verdict(table(tested | {"relative_residual": 0.83}))  # docs/records/rounds.md: 57 images, all stray
    assert strays.level == "nothing shown" and "they may be noise" in str(strays.of(*FOUND))
    none = tested | {"num_reconstructed": 0, "num_vouched": 0}
    assert verdict(table(none)).level == "nothing shown"


def test_without_the_truth_a_few_of_many_images_need_not_explain_what_the_others_do():
    """All of these were exact: of a client that clips gradients, two that make views, one of gray digits as colours."""
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan)
    for few, of, left in ((6, 16, 0.53), (8, 31, 0.58), (8, 58, 0.54), (8, 16, 0.77)):
        row = blind | {"num_inferred": of, "num_reconstructed": few, "num_vouched": few, "relative_residual": left}
        found = verdict(table(row))
        assert found.level == ("exposed" if few >= of / 2 else "partly exposed")
        assert f"finds {few} images of {of} that the update shows (very likely right" in found.headline
    strays = {"num_inferred": 100, "num_reconstructed": 57, "num_vouched": 57, "relative_residual": 0.83}
    assert verdict(table(blind | strays)).level == "nothing shown"  # docs/records/rounds.md


def test_without_the_truth_images_count_where_the_client_reports_how_many_it_has():
    """An attack that was told the number does not infer it."""
    blind = dict.fromkeys(["recovered", "held", "leakage", "num_inferred"], np.nan) | {"num_private": 8}
    one = blind | {"num_reconstructed": 1, "num_vouched": 1, "relative_residual": 1e-5, "num_features": 8}
    found = verdict(table(one, blind | {"client": 1, "num_reconstructed": 0, "num_features": 8}))
    assert found.level == "partly exposed" and "the server finds 1 image of 8 (very likely" in found.headline


def test_without_the_truth_no_more_images_count_than_there_are():
    """A reader's case: "finds 80 images of 40" of ntk, which searches from twice as many starts."""
    blind = dict.fromkeys(["recovered", "held", "leakage", "num_inferred"], np.nan) | {"attack": "ntk"}
    rows = table(blind | {"num_private": 40, "num_reconstructed": 80, "relative_residual": 0.02})
    found = verdict(rows)
    assert "finds 40 images of 40 (very likely right: they leave 0.02 of the update" in found.headline
    assert "at worst 40 images from client 0" in str(found.of("shown"))
    assert leakage_grid(rows).cells()["recovered"] == ["40 found"]


def test_without_the_truth_images_that_explain_the_update_stand_before_more_that_do_not():
    """24 exact images of span's, and 48 of ntk's that leave a third of the update: those were noise."""
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan) | {"num_inferred": 24}
    ntk = blind | {"attack": "ntk", "num_reconstructed": 48, "relative_residual": 0.33}
    span = blind | {"attack": "span", "num_reconstructed": 24, "relative_residual": 0.029}
    close = blind | {"attack": "kkt", "num_reconstructed": 48, "relative_residual": 0.09}
    found = verdict(table(ntk, close, span))
    assert found.level == "exposed"
    assert "finds 24 images of 24 that the update shows (very likely right" in found.headline
    assert "by attack 'span'" in found.headline


def test_the_larger_of_recovered_and_recognized_is_quoted_with_its_name():
    found = verdict(table(recovered(1, recognized=7, null_recognized_p=0.01)))
    assert found.level == "exposed"
    assert "by attack 'span', up to what an eye overlooks (`recognized`) (1 as they are)." in found.headline
    same = verdict(table(recovered(7, recognized=7, null_recognized_p=0.01)))
    assert "recovers 7 of its 8 private images by attack" in same.headline


def test_a_count_that_chance_explains_is_said_and_not_denied():
    """Reviewers' case: "no image was recovered" beside a column that says 1."""
    chance = {"recovered": 1, "held": 1, "floor_recovered_fraction": 0.125}
    found = verdict(table(chance, attack="ntk"))
    assert found.level == "nothing shown" and "No image" not in str(found)
    assert found.headline.startswith("No more than chance was shown to leak by 'ntk' (1 of 8 images at most)")
    said = "Attack 'ntk' has 1 of 8 images of client 0 in round 1: no more than an attacker has who knows nothing"
    assert any(line.startswith(said) for line in found.of(*FOUND))
    assert "The server recovers no more than chance (1 of 8 images at most)." in found.of(*FOUND)
    telling = verdict(table(chance | {"membership_auc": 1.0, "membership_auc_low": 0.98}, attack="ntk"))
    assert telling.headline.startswith(
        "No more images were recovered than chance has (1 of 8 images at most), but membership leaks"
    )


def test_a_guess_at_the_classes_is_said_to_be_one():
    guess = recovered(5, of=20, null_recovered_p=0.3, null_held_p=0.3, class_floor_recovered_fraction=0.2)
    guess |= {"class_floor_leakage": 0.57, "leakage": 0.64, "null_p": 0.74}
    found = verdict(table(guess))
    assert found.level == "nothing shown"
    assert any("5 of 20 images" in line and "what a guess at the classes gives" in line for line in found.of(*FOUND))
    said = "Leakage of 0.64 ('span', client 0, round 1) is what a guess at the classes gives: public images of the same"
    assert any(line.startswith(f"{said} classes leak 0.57") for line in found.of(*FOUND))
    exact = verdict(table(guess | {"null_recovered_p": 0.01, "null_p": 0.01}))
    assert exact.level == "partly exposed" and "recovers 5 of its 20" in exact.headline
    assert "classes" not in str(exact.of(*FOUND))


def test_a_headline_names_the_one_defense_of_a_run():
    assert verdict(table(recovered(8, defense="noise"))).headline.endswith("All clients trained with defense 'noise'.")
    assert verdict(table({"defense": "noise"})).headline.endswith("All clients trained with defense 'noise'.")
    assert "trained with" not in verdict(table(recovered(8))).headline


def test_defenses_that_held_are_told_from_those_that_did_not():
    found = verdict(table(recovered(8), recovered(6, defense="clipping"), {"defense": "noise"}))
    assert "(at no defense)" in found.headline
    assert "Of the client that loses most, some attack has images at no defense (100 %); clipping (75 %)." in found.of(
        *FOUND
    )
    assert "No attack has an image at noise." in found.of(*FOUND)


def test_a_sweep_names_the_setting_of_the_worst_row():
    frame = table(recovered(1), recovered(8), recovered(0)).assign(
        **{"training.epochs": [1, 5, 9], "cell": ["a", "b", "c"]}
    )
    assert "(at training.epochs=5)" in verdict(frame).headline


def test_distilled_targets_are_not_private_images():
    assert verdict(table(recovered(8, target="distilled"), {})).level == "nothing shown"


def test_it_is_made_of_plain_values_for_json():
    found = verdict(table(recovered(8))).as_json()
    assert found["level"] == "exposed" and list(found) == [
        "level", "headline", "stopped", "shown", "tried", "broke", "next", "caveats"
    ]  # fmt: skip
    assert found["broke"] == [] and all(isinstance(found[kind], list) for kind in list(found)[2:])


def told(count, of=100, **columns):
    """At a false-positive rate of 1 %, p as of a binomial count."""
    return {
        "membership_told": count,
        "membership_candidates": of,
        "membership_fpr": 0.01,
        "membership_p": 0.0,
    } | columns


def test_members_are_told_though_every_attack_broke():
    """Reviewers' case: 22, 3 and 43 of 100 at p = 0 read "nothing is known"."""
    broke = {"status": "failed", "detail": "RuntimeError: view size is not compatible"}
    counts = (22, 3, 43)
    found = verdict(table(*(broke | told(count, client=client) for client, count in enumerate(counts))))
    assert found.level == "partly exposed"
    assert found.headline == (
        "No attack gave an image, but membership leaks: by the update of client 2 in round 1, 43 of 100 candidates "
        "took part, at 1 false alarm in 100 (1 of them by chance)."
    )
    (line,) = found.of("broke")
    assert line.startswith("Attack 'span' broke in 3 of 3 cases") and "view size is not compatible" in line
    assert any(line.startswith("Against exposed members") for line in found.of("next"))


def test_candidates_of_whom_none_stands_out_are_not_said_to_have_taken_no_part():
    """A newcomer's case: all 20 had taken part, the mean was wrong, and it read "at most 0 of 20 took part"."""
    auc = {"membership_auc": 0.91, "membership_auc_low": 0.8, "membership_auc_high": 0.97}
    lines = verdict(table(auc | told(0, of=20, membership_p=1.0))).of("shown")
    (line,) = (line for line in lines if "candidates" in line)
    assert "nor that any did not" in line and "a wrong --mean or --std, hides members" in line
    assert "0 of 20 candidates took part" not in line and "no update tells" not in str(lines)


def test_no_image_was_recovered_of_rows_that_had_a_truth_alone():
    """A newcomer's case: 12 of 15 rows had none."""
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan) | {"num_reconstructed": 0}
    members = told(43, client=2)
    mixed = verdict(table(blind | members, blind, {}))
    assert mixed.headline.startswith("No image was recovered in the 1 row that had a truth to be compared with, but")
    assert "The server has no sure image." in mixed.of("tried")
    assert verdict(table(members, {})).headline.startswith("No image was recovered, but")
    assert verdict(table(blind | members)).headline.startswith("No image is sure, but")


def test_features_alone_are_an_exposure_of_their_own():
    found = verdict(table({"num_features": 8, "num_reconstructed": 0}))
    assert found.level == "partly exposed" and "features" in found.headline and "8 of 8 images" in found.headline
    assert verdict(table(recovered(8, num_features=8))).of("shown") == verdict(table(recovered(8))).of("shown")
    parts = verdict(table({"num_features": 40, "num_reconstructed": 0}))
    assert "40 vectors that the network made of parts of the 8 images" in parts.headline


def test_counts_of_classes_are_an_exposure_where_they_are_far_better_than_a_guess():
    counts = {"class_counts": '{"0": 5, "1": 0, "2": 3}', "class_error": 0.0, "floor_class_error": 0.4}
    found = verdict(table(counts))
    assert found.level == "partly exposed"
    assert found.headline == (
        "No image was recovered, but the update of client 0 in round 1 tells how many images it has of each class: 5 "
        "of class 0 and 3 of class 2; 0 % of the images in a wrong class (40 % by a guess)."
    )
    assert verdict(table(counts | {"class_error": 0.3})).level == "nothing shown"
    unchecked = verdict(table({"recovered": np.nan, "class_counts": counts["class_counts"]}))
    assert unchecked.level == "partly exposed" and "which nobody checked" in unchecked.headline


def test_more_images_than_an_update_has_room_for_are_named_and_nothing_is_promised():
    (line,) = [text for text in verdict(table({"capacity": 5})).of("tried") if "room" in text]
    assert "room for 5 images of 8" in line and "no promise" in line
    assert "room" not in str(verdict(table({"capacity": 8})).statements)


def test_images_that_are_right_but_for_their_brightness_ask_for_the_mean():
    right, asked = recovered(8, recovered_affine=8), {"recovered": 0, "recovered_affine": 8}
    assert "are --mean and --std right?" in str(verdict(table(asked)).of("shown"))
    assert "--mean" not in str(verdict(table(right)).statements)
    assert "--mean" not in str(verdict(table(asked, knowledge="{}")).statements)  # nobody told a mean
    assert "--mean" not in str(verdict(table(asked, attack="ntk")).statements)  # it misses the brightness by itself


def test_a_guess_at_the_number_of_images_is_called_one():
    blind = dict.fromkeys(["num_private", "recovered", "held", "leakage"], np.nan)
    guess = {"num_inferred": 451, "num_inferred_guessed": 1}
    sure = blind | guess | {"num_reconstructed": 30, "relative_residual": 0.002}
    found = verdict(table(sure))
    assert "finds 30 images of 451, which is a guess, (very likely right" in found.headline
    assert "30 of 451 (a guess)" in [cell for row in exposure_grid(table(sure)).rows for cell in row]
    told = table(sure | {"num_private": 40})
    assert verdict(told).level == "exposed" and "finds 30 images of 40 (very likely right" in verdict(told).headline
    views = sure | {
        "num_reconstructed": 451,
        "num_private": 40,
        "num_inferred_guessed": 0,
    }  # of a client that augments
    told = "finds 451 images of 451 that the update shows, views or blends of 40 private ones, (very likely right"
    assert told in verdict(table(views)).headline


def test_the_number_of_images_of_an_attack_that_gave_up_is_the_one_told_or_a_guess():
    """A reader's case: "0 of 59" beside "told the number of images", which were 20."""
    gave_up = "nothing returned: it is not a sum over few images, as after SGD (local Adam, much added noise?)"
    blind = dict.fromkeys(["recovered", "held", "leakage"], np.nan) | {"num_reconstructed": 0}
    blind |= {"num_inferred": 59, "num_inferred_guessed": 1}
    for told, said in ((20, "0 of 20"), (np.nan, "0 of 59 (a guess)")):
        rows = table(blind | {"num_private": told, "num_held": 118, "detail": gave_up})
        assert said in exposure_grid(rows).cells()["images at worst"]
        found = verdict(rows)
        assert found.level == "nothing shown" and found.of("shown") == []
        held = "Attack 'span' held back 118 candidates for client 0 in round 1, as it was not sure of them"
        assert held in found.headline and held not in str(found.of("tried"))


def test_who_has_features_and_no_image_has_them_in_the_table_too():
    assert exposure_grid(table({"num_features": 6})).cells()["images at worst"] == ["0 of 8; features of 6"]
    assert exposure_grid(table({"num_features": 16})).cells()["images at worst"] == ["0 of 8; 16 vectors of parts"]
    assert exposure_grid(table(recovered(8, num_features=8))).cells()["images at worst"] == ["8 of 8"]


def test_an_attack_of_the_users_own_is_not_said_to_be_untried():
    from attacks import ATTACKS

    ATTACKS["mine.pairs:RowDifferences"] = object
    try:
        assert "RowDifferences" not in str(verdict(table(recovered(8))).statements)
    finally:
        del ATTACKS["mine.pairs:RowDifferences"]


def test_remedies_say_that_they_were_measured_on_an_mlp():
    *_, how = verdict(table({"recovered": 8})).of("next")
    assert how.startswith("These figures are of an MLP on digits, one to ten seeds. For another network")


def test_the_remedy_that_lets_least_through_is_the_first_and_counts_what_an_eye_would_know():
    """A reviewer's case: 0.02 behind a personal first layer, behind which an eye would know 26 % of the images."""
    first, *_ = verdict(table(recovered(8))).of("next")
    assert "`power_sgd` 0.05 at −7.7 points of accuracy; `personal_layers` of the first layer 0.23 at −1.2" in first


CLASSES = {"class_counts": '{"0": 5}', "class_error": 0.0, "floor_class_error": 0.4}


@pytest.mark.parametrize(
    "leaks", [recovered(8), {"num_features": 8, "num_reconstructed": 0}, {"membership_auc": 1.0}, CLASSES]
)
def test_each_kind_of_exposure_has_two_remedies_with_their_costs(leaks):
    first, *_ = verdict(table(leaks)).of("next")
    assert first.startswith("Against exposed") and first.count("points of accuracy") == 2


def test_nothing_exposed_needs_no_remedy():
    assert verdict(table({})).of("next") == []


def test_what_remedies_cost_is_what_the_record_says_and_none_costs_the_task():
    record = rows_of((DOCS / "records" / "defenses.md").read_text().split("| defense | server |")[1])
    assert record["none"][1].startswith("1.00")
    assert {*REMEDIES, *OF_CLASSES} == {one for names in AGAINST.values() for one in names}
    recorded = pd.read_csv(Path(__file__).parents[2] / "benchmarks" / "recorded_defenses.csv")
    server = strongest(recorded[recorded.processor == recorded.processor[0]]).query("threat_model == 'server'")
    known = server.set_index("defense").leak
    for name, (left, auc, points) in REMEDIES.items():
        share, *others = costs(record[name])
        assert left == pytest.approx(max(share, known[name]), abs=0.006) and [points, auc] == others and points >= -10
    page = rows_of((DOCS / "howto" / "defense.md").read_text())
    for name, (_, left, seen, auc, points) in page.items():
        assert [float(left), float(points.replace("−", "-") or 0), float(auc)] == costs(record[name])
        assert float(seen) == pytest.approx(known[name], abs=0.006)
    assert page.keys() > REMEDIES.keys()


def test_what_remedies_leave_of_the_classes_is_what_their_record_says():
    record = (DOCS / "records" / "label_counts_defended.md").read_text()
    rows, ungated = rows_of(record), {name: wrong for wrong, name in re.findall(r"(0\.\d\d) behind `(\w+)`", record)}
    said = verdict(table(CLASSES)).of("next")[0]
    assert f"(undefended {rows['none'][2]}, by a guess {rows['none'][3]})" in said
    for name, (wrong, points) in OF_CLASSES.items():
        assert [f"{wrong:.2f}", f"{points:+.1f}"] == [ungated.get(name, rows[name][2]), rows[name][-1]]


def rows_of(text):
    """The cells of the lines of the first table that begin with a name, by this name."""
    lines = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:3] == "| `"]
    return {cells[0].split("`")[0]: cells for cells in lines}


def costs(row):
    """(share of the images that the server has, returned or held, points, AUC) of a row of the record."""
    return [max(float(row[1].split()[0]), float(row[3])), float(row[8] or 0), float(row[10])]
