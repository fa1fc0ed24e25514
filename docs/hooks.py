"""Pages of the site that are made from the code while it is built: they cannot be out of date."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import fedspill
from docs.reference.commands import reference


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/commands.md", content=reference()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    return files


def python() -> str:
    """Everything that `import fedspill` gives, for mkdocstrings to fill in."""
    names = [f"::: {fedspill.HOME.get(name, 'fedspill')}.{name}" for name in fedspill.__all__]
    return "\n\n".join(["# Python", (fedspill.__doc__ or "").strip(), *names])
