"""Which attack to expect something of, and why, in plain words: the end of `fedspill diagnose`."""

from attacks import ATTACKS, InputError, Knowledge, Observation
from attacks.kernel.regime import KERNEL_REGIME, Linearity
from attacks.update.first_layer import infer_image_count

ORDER = ("span", "ntk", "gradient_matching")


def advice(observation: Observation, knowledge: Knowledge, found: Linearity) -> list[str]:
    """A line for each attack, the one to try first at the head; each says why, or why not."""
    if found.update.delta_linf == 0:
        return ["The update is zero: the client returned what it was sent, and no attack finds anything."]
    lines = {name: _refusal(name, observation, knowledge) for name in ORDER}
    works = {name for name, refused in lines.items() if not refused}
    said = {
        "span": lines["span"] or _span(observation, found),
        "ntk": lines["ntk"] or f"can be tried: {found.verdict}",
        "gradient_matching": lines["gradient_matching"]
        or "can be tried: it simulates the local steps that it was told, which is for one or a few of them",
    }
    best = _best(works, found)
    head = f"Try `{best}` first." if best else "No attack promises much here; what follows says why."
    return [head, *(f"{name}: {text}" for name, text in said.items())]


def _refusal(name: str, observation: Observation, knowledge: Knowledge) -> str:
    """Why the attack does not run on this network with this knowledge; "" where it does."""
    try:
        ATTACKS[name]().check(observation, knowledge)
    except InputError as error:
        return f"does not run: {error}"
    return ""


def _best(works: set[str], found: Linearity) -> str | None:
    if "span" in works and (found.update.images_layer is None or found.update.has_rank):
        return "span"
    if "ntk" in works and found.verdict == KERNEL_REGIME:
        return "ntk"
    return "gradient_matching" if "gradient_matching" in works else None


def _span(observation: Observation, found: Linearity) -> str:
    """What the spectrum of the update promises the attack that reads it."""
    count = infer_image_count(observation)
    if count is None or found.update.images_layer is None:
        return (
            "can be tried: the images do not reach a linear layer as they are, so it looks for them behind the layers "
            "in front; exact after one local step, less sure after several"
        )
    if found.update.has_rank:
        return (
            f"works where training was plain SGD: the first layer's update has the clear rank {count.count}, so "
            f"{count.count} images span it, and they are searched in that span; exact, however long the training "
            "and however far from the kernel regime"
        )
    return (
        "promises little: the first layer's update has no clear rank (local Adam, weight decay or noise, or more "
        "images than the layer has units or pixels)"
    )
