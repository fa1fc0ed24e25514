"""Defenses with a guarantee: what one image, or one client, changes in what is sent is bounded and noised."""
