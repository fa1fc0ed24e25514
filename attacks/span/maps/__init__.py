"""Feature maps of private images from the updates of two consecutive convolutions, and images from the maps.

To be read in the order in which it runs: network (which two convolutions), patches (the span of those that one saw),
update (both spans, and the number of images), search (private maps), inversion (images with these maps).

Notation: N images, maps F of C channels of H x W, U_p F the patch of F at output position p of P, ρ(F) the share of
what the second convolution is fed for F that lies outside its span.
"""
