"""One file per source of images: a function from the data section of a scenario to a `Dataset`."""
