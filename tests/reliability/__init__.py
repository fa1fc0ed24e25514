"""What becomes of every fault: the matrix, the clients, attacks and scores that have them, and the page made of it."""
