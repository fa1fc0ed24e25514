"""What a verdict does not say: what was not tried, what failed or gave up, and what was assumed."""

import pandas as pd

from attacks import ATTACKS
from simulator.adversary.threat_models import THREAT_MODELS
from simulator.reports.verdict_membership import untold
from simulator.reports.verdict_words import counted, listed, said, sentence

GAVE_UP = "nothing returned: "
STATUSES = {"skipped": "not tried", "timeout": "out of time", "failed": "failed"}
BASELINES = ("mean_image", "random_public", "best_public")  # no attacks: what attacks have to beat
MOST = 6  # reasons of one kind


def caveats(rows: pd.DataFrame, level: str) -> tuple[str, ...]:
    """Sentences. rows: of `exposure_rows`, those without a result too."""
    good = rows[rows.status == "ok"]
    lines = [*_without_result(rows), *_gave_up(good), *_assumed(good), *_not_tried(rows)]
    if level == "nothing shown":
        lines.append(
            "what no attack took may still be there: another attack, more rounds or more knowledge may find it"
        )
    return tuple(sentence(line) for line in lines)


def _without_result(rows: pd.DataFrame) -> list[str]:
    lines = []
    for status, words in STATUSES.items():
        own = rows[rows.status == status]
        lines += [f"{_attacks(own)} {words} in {counted(n, 'case')}: {text}" for text, n in said(own)[:MOST]]
    return lines


def _gave_up(good: pd.DataFrame) -> list[str]:
    """Attacks that looked at an update and returned nothing."""
    own = good[good.detail.str.contains(GAVE_UP, regex=False, na=False) & (good.num_reconstructed == 0)]
    if own.empty:
        return []
    reasons = said(own.assign(detail=own.detail.str.extract(f"{GAVE_UP}([^;]*)", expand=False)))
    return [
        f"{_attacks(own)} gave up in {len(own)} of {counted(len(good), 'attack')}, which is a refusal and no safety: "
        + "; ".join(text for text, _ in reasons[:2])
    ]


def _assumed(good: pd.DataFrame) -> list[str]:
    """What attacks and scores remark of themselves, but for refusals."""
    shown = untold(good)  # among the details
    remarks = [(text, count) for text, count in said(good) if GAVE_UP not in text and text != shown]
    lines = [f"in {counted(count, 'row')}: {text}" for text, count in remarks[:MOST]]
    more = len(remarks) - MOST
    return [*lines, f"{counted(more, 'more remark')} in the column `detail`"] if more > 0 else lines


def _not_tried(rows: pd.DataFrame) -> list[str]:
    """Attacks and threat models that no row is of. An attack under a label of its own counts by the name in it."""
    labels = " ".join(map(str, rows.attack.unique()))
    attacks = [name for name in sorted(ATTACKS) if name not in labels and name not in BASELINES]
    seen = " ".join(map(str, rows.threat_model.unique()))  # server_history is a history
    views = [model.name for model in THREAT_MODELS if model.name not in seen and "_" not in model.name]
    lines = [f"attack{'s' * (len(attacks) > 1)} {listed(attacks)}"] if attacks else []
    lines += [f"threat model{'s' * (len(views) > 1)} {listed(views)}"] if views else []
    return [f"not tried: {'; '.join(lines)}"] if lines else []


def _attacks(rows: pd.DataFrame) -> str:
    labels = [repr(label) for label in dict.fromkeys(rows.attack)]
    return f"attack{'s' * (len(labels) > 1)} {listed(labels)}" if labels else ""
