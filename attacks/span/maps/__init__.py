"""Feature maps of private images from the updates of two consecutive convolutions, and images from the maps.

To be read in the order in which it runs (`attacks.span.variants.maps` calls it):

    network        which two convolutions: one whose update holds the maps, the next one to test them; and with which
                   statistics BatchNorm normalized, where it did so by the batch
    patches        the span of the patches that a convolution saw, as filters of its own geometry
    update         both updates without weight decay, their ranks, the number of images; after several steps, maps as
                   they were before them
    search         all maps whose patches lie in the first span, a linear space, and the private maps in it: those that
                   the second span holds, and no decoy
    inversion      images with these maps, and by decoys which of them may be returned

Notation: N images, maps F of C channels of H x W, U_p F the patch of F at output position p of P, ρ(F) the share of
what the second convolution is fed for F that lies outside its span.
"""
