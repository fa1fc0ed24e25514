"""Feature maps of private images from the updates of two consecutive convolutions, and images from the maps.

To be read in the order in which it runs (`attacks.span.variants.maps` calls it):

    network        which two convolutions: one whose update holds the maps, the next one to test them
    statistics     with which statistics BatchNorm normalized, where it did so by the batch
    update         both updates without weight decay, their ranks, the number of images
    patches        the span of the patches that a convolution saw, as filters of its own geometry
    eigenvectors   all maps whose patches lie in the first span: a linear space
    search         private maps in that space: those that the second span holds, and no decoy
    inversion      images with these maps; `decoys` says which of them may be returned
    drift          after several steps: maps as they were before them

Notation: N images, maps F of C channels of H x W, U_p F the patch of F at output position p of P, ρ(F) the share of
what the second convolution is fed for F that lies outside its span.
"""
