"""Writes docs/reference/licences.md: what fedspill needs to run, directly or through others, and under which licences.

python docs/reference/licences.py > docs/reference/licences.md
"""

import re
from importlib import metadata

from packaging.requirements import Requirement

COPYLEFT = re.compile(r"(?<![A-Z])A?GPL|EUPL|SSPL|CC-BY-SA|CC-BY-NC")  # the LGPL and the MPL ask nothing of users
HEAD = """# Licences

fedspill is under Apache-2.0. This is what it needs, directly (**bold**) or through others, on Linux with torch for
CPUs, listed by `python docs/reference/licences.py`. A test fails where one comes under a licence that would bind
those who use fedspill (GPL, AGPL). torch for CUDA brings NVIDIA's own libraries with it, under NVIDIA's terms.

| package | version | licence |
|---|---|---|"""
PICTURES = """
## Pictures

`faces` are the 200 pictures of `skimage.data.lfw_subset()`: 100 faces and 100 other crops of *Labeled Faces in the
Wild* (Huang, Ramesh, Berg and Learned-Miller, 2007), news photographs of public persons collected for research on
recognition. scikit-image ships them under its own licence; the collection claims no rights in the photographs, which
stay with their owners. Of them this repository has the sixteen of its strip alone. `digits` are those of scikit-learn,
from UCI's *Optical Recognition of Handwritten Digits* (CC BY 4.0)."""


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, metadata.Distribution]:
    """Every distribution that one needs, by its name, without itself."""
    found: dict[str, metadata.Distribution] = {}
    waiting, seen = [(name, extras)], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            distribution = metadata.distribution(one[0])
        except metadata.PackageNotFoundError:  # of another platform
            continue
        found[distribution.metadata["Name"].lower().replace("_", "-")] = distribution
        for text in distribution.requires or []:
            wanted = Requirement(text)
            if any(wanted.marker is None or wanted.marker.evaluate({"extra": extra}) for extra in ("", *one[1])):
                waiting.append((wanted.name, frozenset(wanted.extras)))
    del found[name]
    return found


def licence_of(distribution: metadata.Distribution) -> str:
    """As the package says: its SPDX expression, else its classifiers, else the first line of its text."""
    said = distribution.metadata
    classified = [c.rpartition(" :: ")[2] for c in said.get_all("Classifier") or [] if c.startswith("License :: ")]
    text = (said["License"] or "").strip().splitlines()
    return said["License-Expression"] or "; ".join(classified) or (text[0][:60] if text else "not said")


def direct() -> set[str]:
    requirements = map(Requirement, metadata.distribution("fedspill").requires or [])
    return {one.name.lower() for one in requirements if one.marker is None}


def main() -> None:
    print(HEAD)
    for name, distribution in sorted(needed("fedspill").items()):
        shown = f"**{name}**" if name in direct() else name
        print(f"| {shown} | {distribution.version} | {licence_of(distribution)} |")
    print(PICTURES)


if __name__ == "__main__":
    main()
