"""Ray: engine replicas, load workers, sweeps, the run directory and the command line."""
