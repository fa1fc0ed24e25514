"""Feature maps of private images from the updates of a convolution and a later layer, and images from them.

To be read in the order in which it runs: network (which two layers), patches (the span of those that one saw),
update (both spans, and the number of images), search (private maps), inversion (images with these maps).

Notation: N images, maps F of C channels of H x W, U_p F the patch of F at output position p of P, ρ(F) the share of
what the second layer is fed for F that lies outside its span.
"""
