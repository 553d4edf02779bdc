"""What hostile clients do in a simulation: one attack a file."""
