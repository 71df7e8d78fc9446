"""Methods of optimisation, one file each; they know rows and energies, and no norm by name."""
